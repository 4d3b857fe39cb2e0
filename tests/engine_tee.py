"""Stands between a host and its engine, and writes down every line in both directions (standard library only).

    engine_tee.py RECORD COMMAND…

Each line of the file RECORD is JSON: {"from": "host" | "engine", "line": text}. It adds and changes nothing, ends when
the engine ends, and closes the engine's input when its own is closed.
"""

import json
import os
import subprocess
import sys
import threading

LOCK = threading.Lock()


def pump(who, source, target, record) -> None:
    while line := source.readline():
        with LOCK:
            record.write(json.dumps({"from": who, "line": line.decode("utf-8", "replace")}) + "\n")
            record.flush()
        try:
            target.write(line)
            target.flush()
        except OSError:
            break
    try:
        target.close()
    except OSError:
        pass


def main() -> int:
    with open(sys.argv[1], "a") as record:  # noqa: PTH123 -- a path from the command line
        engine = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        down = threading.Thread(target=pump, args=("host", sys.stdin.buffer, engine.stdin, record), daemon=True)
        up = threading.Thread(target=pump, args=("engine", engine.stdout, sys.stdout.buffer, record), daemon=True)
        down.start()
        up.start()
        code = engine.wait()
        up.join(5)
    sys.stdout = None
    os._exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
