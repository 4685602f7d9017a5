"""Everything that would stop a run, found before any GPU work: one row a thing that is needed."""

from refbias.config.root import Config
from refbias.preflight.local import local_rows
from refbias.preflight.machine import disk_rows, gpu_rows
from refbias.preflight.remote import remote_rows, token_row
from refbias.preflight.rows import MISSING, NOTE, OK, Row
from refbias.preflight.software import software_rows

__all__ = ["MISSING", "NOTE", "OK", "Row", "check"]


def check(config: Config, gpu: bool = True) -> list[Row]:
    """Check what a run needs from outside.

    Parameters
    ----------
    config
        The run.
    gpu
        Whether this machine is to do the GPU work.

    Returns
    -------
    list of Row
        Repositories and addresses, local paths, further software, disk, GPU; nothing is downloaded.
    """
    remote = remote_rows(config)
    token = [token_row(remote)] if any(row.kind == "hub" for row in remote) else []
    here = [*local_rows(config), *software_rows(config, gpu), *disk_rows(config)]
    return [*remote, *token, *here, *(gpu_rows(config) if gpu else [])]
