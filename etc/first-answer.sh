#!/usr/bin/env bash
# Start the daemon with the embedded model, send a first request, and leave it running.
# Called by `make run`; VENV and PORT come from there.
set -euo pipefail
bin="${VENV:-.venv}/bin"
url="http://127.0.0.1:${PORT:-8000}"
question="What does shutil.copytree do?"

# The daemon reports its own readiness: another server may answer at the port.
notices=$(mktemp -d)
"$bin/python" -c '
import pathlib, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
    systemd.bind(sys.argv[1])
    while True:  # it sends other notifications, too
        if b"READY=1" in systemd.recv(4096).splitlines():
            pathlib.Path(sys.argv[2]).touch()' "$notices/socket" "$notices/ready" &
listening=$!
daemon=
stop() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true # it does not handle SIGINT while it starts
    wait "$daemon" || true
  fi
  kill "$listening" 2>/dev/null || true
  rm -rf "$notices"
}
trap stop EXIT # stop the daemon however this script ends
trap 'exit 0' INT TERM

while [ ! -S "$notices/socket" ] && kill -0 "$listening"; do sleep 0.05; done
NOTIFY_SOCKET="$notices/socket" "$bin/gatewayd" serve --port "${PORT:-8000}" &
daemon=$!
while [ ! -e "$notices/ready" ]; do
  if ! kill -0 "$daemon" 2>/dev/null; then
    wait "$daemon"
    exit
  fi
  sleep 0.1
done

# `chat` reads OPENAI_API_KEY by default; here the daemon's own key is needed.
key=()
if [ -n "${GATEWAYD_API_KEY:-}" ]; then
  key=(--api-key "$GATEWAYD_API_KEY")
fi

printf '\nA first answer:\n\n  > %s\n' "$question"
printf '%s\n' "$question" | "$bin/gatewayd" chat --url "$url" "${key[@]}" --temperature 0 | sed 's/^/  /'
cat <<EOF

The same with curl, from another terminal:

  curl $url/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "nano", "messages": [{"role": "user", "content": "$question"}]}'

Ctrl-C stops the daemon. Nano knows Python's standard library and little else.
EOF
wait "$daemon"
