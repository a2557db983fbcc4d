"""The admission strategy behind a fence: what it cannot decide is taken on."""

from __future__ import annotations

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.plugins.fenced import Fenced, Misbehaved
from gatewayd_hooks.admission import AdmissionRequest, AdmissionStrategy, Load, Refusal
from gatewayd_hooks.strategy import Kind


class FencedAdmission(Fenced[AdmissionStrategy]):
    """Asks the strategy about each request that comes."""

    kind = Kind.ADMISSION

    def check(self, request: AdmissionRequest, load: Load) -> None:
        """Refuse a request, or take it on.

        Raises:
            NotAdmitted: the strategy refuses it.
        """
        if self.is_quarantined:
            return
        refusal = self._call(lambda: self._asked(request, load))
        self._note_overruns()
        if refusal is None:
            return
        kind = TenantNotAdmitted if refusal.is_tenants else NotAdmitted
        raise kind(
            refusal.message,
            reason=refusal.reason,
            retry_after=refusal.retry_after,
            offers=refusal.offers,
        )

    def takes(self, request: AdmissionRequest, load: Load) -> bool:
        """Whether the strategy would take a request on that nobody has sent."""
        if self.is_quarantined:
            return True
        refusal = self._call(lambda: self._asked(request, load))
        self._note_overruns()
        return refusal is None

    def began(self, request: AdmissionRequest, load: Load, seconds: float) -> None:
        """A request that was taken on got its first token."""
        if not self.is_quarantined:
            self._call(lambda: self._watched.began(request, load, seconds))
            self._note_overruns()

    def _asked(self, request: AdmissionRequest, load: Load) -> Refusal | None:
        answer = self._watched.admit(request, load)
        if answer is None or isinstance(answer, Refusal):
            return answer
        raise Misbehaved(f"answered {answer!r:.80}, which is not a Refusal")
