"""What FLARE itself refuses (a job that brings code, a class that is not ours, a user without the right) in the audit log.

FLARE tells nobody: it has no event for a refusal, and its log holds sentences only. So the two places where it decides are
asked here what they decided, by what they were asked and what they answered or raised, not by a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import Authorizer, AuthzContext

from suture.federation.audit import AuditLog
from suture.federation.wire.reasons import Code, Reason

TO_BRING_CODE = "byoc"
"""FLARE's name of the right to submit a job with code in it."""


class RefusalsNoted:
    """A component of a party's start-up kit: FLARE builds it in each of the party's processes, those of its jobs too."""

    def __init__(self, path: str, party: str) -> None:
        note_refusals(AuditLog(Path(path), party))


def note_refusals(audit: AuditLog) -> None:
    """From now on, in this process."""
    _watch_rights(audit)
    _watch_classes(audit)


def _watch_rights(audit: AuditLog) -> None:
    authorize = Authorizer.authorize

    def authorized(self: Authorizer, ctx: AuthzContext) -> tuple[bool, str]:
        allowed, error = authorize(self, ctx)
        if not allowed:
            audit.note("refused", **no_right(ctx.right, ctx.user.name).as_json())
        return allowed, error

    Authorizer.authorize = authorized


def no_right(right: str, user: str) -> Reason:
    """What it means that a user lacks this right."""
    if right == TO_BRING_CODE:
        return Reason(Code.FOREIGN_CODE, f"a job brings code of its own; {user} submitted it")
    return Reason(Code.NO_RIGHT, f"{user} has no right to {right}")


def _watch_classes(audit: AuditLog) -> None:
    authorize = ComponentPathAuthorizer.authorize_component_config
    noted: set[str] = set()

    def authorized(self: Any, component_config: Mapping[str, Any], *arguments: Any, **more: Any) -> None:
        try:
            authorize(self, component_config, *arguments, **more)
        except UnsafeComponentError:
            named = str(component_config.get("path", component_config.get("class_path")))
            if named not in noted:  # FLARE asks again on its way out of the configuration
                noted.add(named)
                why = Reason(Code.FOREIGN_CLASS, f"a job names the class {named}, which is not one of ours")
                audit.note("refused", **why.as_json())
            raise

    ComponentPathAuthorizer.authorize_component_config = authorized
