"""Fenced admission strategy; requests that it cannot decide are admitted."""

from __future__ import annotations

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.plugins.fenced import Fenced, InvalidStrategyAnswer
from gatewayd_hooks.admission import AdmissionRequest, AdmissionStrategy, Load, Refusal
from gatewayd_hooks.strategy import Kind


class FencedAdmission(Fenced[AdmissionStrategy]):
    """Asks the admission strategy about each arriving request."""

    kind = Kind.ADMISSION

    def check(self, request: AdmissionRequest, load: Load) -> None:
        """Admit a request, or refuse it.

        Raises:
            NotAdmitted: the strategy refuses it.
        """
        refusal = self._call(lambda: self._ask_strategy(request, load))
        # None also after a fault or quarantine: a broken strategy refuses no request.
        if refusal is None:
            return
        # 429 names the tenant's own load as the reason, 503 that of the whole daemon.
        kind = TenantNotAdmitted if refusal.is_tenants else NotAdmitted
        raise kind(
            refusal.message,
            reason=refusal.reason,
            retry_after=refusal.retry_after,
            offers=refusal.offers,
        )

    def would_admit(self, request: AdmissionRequest, load: Load) -> bool:
        """Whether the strategy would admit a hypothetical request."""
        return self._call(lambda: self._ask_strategy(request, load)) is None

    def report_first_token(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """Report the first token of an admitted request."""
        self._call(lambda: self._watched.began(request, load, seconds))

    def _ask_strategy(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        answer = self._watched.admit(request, load)
        if answer is None or isinstance(answer, Refusal):
            return answer
        raise InvalidStrategyAnswer(f"answered {answer!r:.80}, which is not a Refusal")
