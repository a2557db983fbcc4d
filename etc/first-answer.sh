#!/usr/bin/env bash
# Start the daemon on the embedded model, ask it something, and leave it running.
# Called by `make run`; VENV and PORT come from there.
set -euo pipefail
bin="${VENV:-.venv}/bin"
url="http://127.0.0.1:${PORT:-8000}"
question="What does shutil.copytree do?"

"$bin/gatewayd" serve --port "${PORT:-8000}" &
daemon=$!
stop() {
  kill -INT "$daemon" 2>/dev/null || true
  wait "$daemon" || true
}
trap stop EXIT # whatever ends this script ends the daemon
trap 'exit 0' INT TERM

ready() {
  "$bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' \
    "$url/readyz" >/dev/null 2>&1
}
until ready; do
  if ! kill -0 "$daemon" 2>/dev/null; then
    wait "$daemon"
    exit
  fi
  sleep 0.3
done

if ! kill -0 "$daemon" 2>/dev/null; then
  echo "another server answers at $url; ours could not start" >&2
  exit 1
fi

# chat takes its key from OPENAI_API_KEY by default; the daemon's own is the right one here.
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
