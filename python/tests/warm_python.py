"""Runs scripts in processes that have imported PyTorch already, which takes seconds.

`serve SOCKET` imports it, and forks a process for each `run SOCKET SCRIPT ARGUMENT…`. The process has the environment,
the folder and the output of the latter, which ends when the script does and the way it does.
"""

import atexit
import json
import os
import runpy
import select
import socket
import sys
import traceback
from typing import Any


def serve(path: str) -> None:
    """Fork a process for each request, until the standard input ends."""
    import torch._dynamo  # noqa: F401, PLC0415 the first step of an optimizer imports it

    import paceline._torch.training  # noqa: F401, PLC0415

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                watch(connection)
                os._exit(0)
            connection.close()


def watch(connection: socket.socket) -> None:
    """Run a script in another process and send its exit code. End it when the connection ends."""
    message, outputs, *_ = socket.recv_fds(connection, 1 << 20, 2)
    process = os.fork()
    if process == 0:
        connection.close()
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
        os._exit(run(json.loads(message)))
    ended = os.pidfd_open(process)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(process, 9)
    _, status = os.waitpid(process, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def run(request: dict[str, Any]) -> int:
    """Run a script as the interpreter would, and return the exit code."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:  # the interpreter catches all
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def ask(path: str, arguments: list[str]) -> int:
    """Have a script run, and return its exit code."""
    request = {"environment": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}  # noqa: PTH109 no imports
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
        return int(connection.recv(16) or 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
