"""For the programs that a test's Snakemake starts: hands them to a process that has imported other packages before.

Python runs this file at its start where this folder is on its path (see server.py beside it). It says what to run, in
which folder and environment, gives its own standard streams away and ends as that program ends.
"""

import json
import os
import socket
import sys

ADDRESS = os.environ.get("REFBIAS_TESTS_WARM")
if ADDRESS and sys.orig_argv[1:3] in (["-m", "refbias"], ["-m", "snakemake"]):
    ask = {"module": sys.orig_argv[2], "arguments": sys.orig_argv[3:], "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(ADDRESS)
        socket.send_fds(line, [b"!"], [0, 1, 2])
        line.sendall(json.dumps({**ask, "environment": dict(os.environ)}).encode())
        line.shutdown(socket.SHUT_WR)
        answer = line.recv(16)
    # without an answer the server is gone
    os._exit(int(answer) if answer else 70)
