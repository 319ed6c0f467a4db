"""At whose place a job's process has died.

FLARE ends a job at once when an owner's process of it dies, before anybody could notice the silence, and writes down that it
ended but not through whom. Here the coordinator adds that to the job's record, which the operator looks at anyway.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey

DIED = "suture_process_died_at"
"""The entry of a job's record."""
DEATHS = (ProcessExitCode.EXCEPTION, ProcessExitCode.INFRASTRUCTURE_ERROR)
"""FLARE's codes of a process that did not end by itself, nor because it was told to."""


def write_down_casualties() -> None:
    """From now on, in the coordinator's own process; before FLARE's server is made."""
    # Owners' processes have no server, and do not wait until it is imported.
    from nvflare.private.fed.server.fed_server import FederatedServer

    process = FederatedServer.process_job_failure

    def process_job_failure(server: Any, request: Any) -> Any:
        """In the place of FLARE's, which goes on with it: the first report of a job that still runs has ended it."""
        owner, job = _reported(server, request)
        if owner is not None:
            with server.engine.new_context() as context:
                server.engine.job_def_manager.update_meta(job, {DIED: owner}, context)
        return process(server, request)

    FederatedServer.process_job_failure = process_job_failure


def _reported(server: Any, request: Any) -> tuple[str | None, str]:
    """Whose report it is, by its token, and of which job; nobody's if FLARE does not wait for it."""
    payload, token = request.payload, request.get_header(CellMessageHeaderKeys.TOKEN)
    job = payload.get(JobFailureMsgKey.JOB_ID) if isinstance(payload, dict) else None
    client = server.client_manager.clients.get(token) if token else None
    if client is None or not isinstance(job, str) or payload.get(JobFailureMsgKey.CODE) not in DEATHS:
        return None, ""
    waited_for = server.engine.job_runner.is_client_outcome_pending(job, client.name)
    return (client.name if waited_for else None), job
