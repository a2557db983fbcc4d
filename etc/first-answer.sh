#!/usr/bin/env bash
# Start the daemon on the embedded model, ask it something, and leave it running.
# Called by `make run`; VENV and PORT come from there.
set -euo pipefail
bin="${VENV:-.venv}/bin"
url="http://127.0.0.1:${PORT:-8000}"
question="What does shutil.copytree do?"

"$bin/gatewayd" serve --port "${PORT:-8000}" &
daemon=$!
trap 'kill -INT "$daemon" 2>/dev/null; wait "$daemon"; exit 0' INT TERM

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

printf '\nA first answer:\n\n  > %s\n' "$question"
printf '%s\n' "$question" | "$bin/gatewayd" chat --url "$url" --temperature 0 | sed 's/^/  /'
cat <<EOF

The same with curl, from another terminal:

  curl $url/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "nano", "messages": [{"role": "user", "content": "$question"}]}'

Ctrl-C stops the daemon. Nano knows Python's standard library and little else.
EOF
wait "$daemon"
