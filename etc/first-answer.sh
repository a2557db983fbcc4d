#!/usr/bin/env bash
# Start the daemon on the embedded model, ask it something, and leave it running.
# Called by `make run`; VENV and PORT come from there.
set -euo pipefail
bin="${VENV:-.venv}/bin"
url="http://127.0.0.1:${PORT:-8000}"
question="What does shutil.copytree do?"

# The daemon itself says when it is ready: what answers at the port may be another server.
notices=$(mktemp -d)
"$bin/python" -c '
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
    systemd.bind(sys.argv[1])
    sys.exit(not systemd.recv(4096).startswith(b"READY=1"))' "$notices/socket" &
ready=$!
daemon=
stop() {
  kill "$ready" 2>/dev/null || true
  rm -rf "$notices"
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true # while it starts it does not hear SIGINT
    wait "$daemon" || true
  fi
}
trap stop EXIT # whatever ends this script ends the daemon
trap 'exit 0' INT TERM

while [ ! -S "$notices/socket" ] && kill -0 "$ready"; do sleep 0.05; done
NOTIFY_SOCKET="$notices/socket" "$bin/gatewayd" serve --port "${PORT:-8000}" &
daemon=$!
while kill -0 "$ready" 2>/dev/null; do
  if ! kill -0 "$daemon" 2>/dev/null; then
    wait "$daemon"
    exit
  fi
  sleep 0.1
done
if ! wait "$ready"; then
  wait "$daemon"
  exit
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
