#!/bin/sh
# Regenerate the lock files: every distribution but torch, with the hashes of its files, for Linux on
# x86_64 and aarch64 and every Python of the project. Usage: make.sh UV TORCH OUT, from the root.
set -eu
uv=$1 torch=$2 out=$3
# torch's build depends on the machine (CPU, CUDA version), so it is pinned without hashes, together
# with the dependencies of its CUDA build.
left_out="torch"
for name in toolkit bindings pathfinder; do left_out="$left_out cuda-$name"; done
for name in cublas cuda-cccl cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand \
  cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx; do
  left_out="$left_out nvidia-$name"
done
pinned=$(mktemp)
trap 'rm -f "$pinned"' EXIT
echo "$torch" >"$pinned"
for name in gatewayd dev; do
  options=
  [ "$name" = gatewayd ] || options="--extra $name"
  for each in $left_out; do options="$options --no-emit-package $each"; done
  # shellcheck disable=SC2086
  "$uv" --quiet pip compile pyproject.toml --constraint "$pinned" $options --universal \
    --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --custom-compile-command "make lock" --upgrade --output-file "$out/$name.txt" >/dev/null
  sed -i "1i # Made by make lock. Beside it: $torch" "$out/$name.txt"
done
# FlashInfer without dependencies, which its attention does not need. A fixed release, because its
# kernels are compiled ahead; tests read its wheel, and it is packed for GPU machines.
printf 'flashinfer-python==0.7.2.post1\napache-tvm-ffi<0.2\n' |
  "$uv" --quiet pip compile - --no-deps --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --upgrade --output-file "$out/gpu.txt" >/dev/null
sed -i "1i # Made by make lock: what a GPU machine needs besides torch, Triton and gatewayd.txt." "$out/gpu.txt"
