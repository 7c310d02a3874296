"""Judges the news: each status and state in its order, and at the end what the store has."""

from forewarn.maintenance import news
from forewarn.maintenance.news import NewsType
from forewarn.maintenance.units import MaintenanceState
from forewarn.vocabulary import EventStatus
from simulation.judge import Wrong
from store.model import Model

STATUS = {f"operation.{status.lower()}": status for status in EventStatus}

BEFORE: dict[EventStatus, set[EventStatus | None]] = {
    EventStatus.QUEUED: {None},
    EventStatus.SCHEDULED: {None, EventStatus.QUEUED},
    EventStatus.STARTED: {None, EventStatus.QUEUED, EventStatus.SCHEDULED},
    EventStatus.RETURNING: {EventStatus.STARTED},
    EventStatus.COMPLETED: {EventStatus.STARTED, EventStatus.RETURNING},
    EventStatus.FAILED: {EventStatus.STARTED, EventStatus.RETURNING},
    EventStatus.CANCELED: {EventStatus.QUEUED, EventStatus.SCHEDULED},
}
"""What each status follows, as an outsider reads it."""


RESTS = {NewsType.MAINTENANCE_PAUSED, NewsType.MAINTENANCE_HALTED}
GOES_ON = {None, NewsType.MAINTENANCE_RESUMED}

AFTER: dict[NewsType, set[NewsType | None]] = {
    NewsType.MAINTENANCE_PAUSED: GOES_ON,
    NewsType.MAINTENANCE_HALTED: {*GOES_ON, NewsType.MAINTENANCE_PAUSED},
    NewsType.MAINTENANCE_RESUMED: RESTS,
    NewsType.MAINTENANCE_STOPPED: {*GOES_ON, *RESTS},
}
"""What is told of a maintenance before it; None is nothing but that it goes on."""


class NewsJudge:
    """What an outsider knows who has read all news."""

    def __init__(self, memory: Model) -> None:
        self._memory = memory
        self.items = 0
        self._status: dict[str, EventStatus] = {}
        self._asked: set[int] = set()
        self._finished: set[int] = set()
        self._state: dict[int, NewsType] = {}
        """What was told last of how each maintenance goes on, or rests."""

    def hear(self, told: bytes) -> None:
        """Take the news of one transaction."""
        for item in news.decode(told) if told else ():
            self.items += 1
            data = item.data
            if (status := STATUS.get(item.type)) is not None:
                known = self._status.get(data.operation)
                if known not in BEFORE[status]:
                    raise Wrong(f"news: {data.operation} is {status} after {known}")
                self._status[data.operation] = status
            elif item.type in AFTER:
                before = self._state.get(data.maintenance)
                if before not in AFTER[item.type]:
                    raise Wrong(f"news: {item.type} of {data.maintenance} after {before}")
                self._state[data.maintenance] = item.type
            elif item.type is NewsType.MAINTENANCE_SCHEDULED:
                if data.maintenance in self._asked:
                    raise Wrong(f"news: maintenance {data.maintenance} is new again")
                self._asked.add(data.maintenance)
            elif item.type is NewsType.MAINTENANCE_FINISHED:
                if data.maintenance in self._finished:
                    raise Wrong(f"news: maintenance {data.maintenance} is finished again")
                self._finished.add(data.maintenance)

    def kept(self) -> None:
        """Compare what was told with what the store has."""
        memory = self._memory
        for name, operation in memory.all_operations.items():
            if self._status.get(name) is not operation.status:
                told = self._status.get(name)
                raise Wrong(f"news: {name} is {told}, and the store has {operation.status}")
        for number, maintenance in memory.all_maintenances.items():
            told_so = self._state.get(number) is NewsType.MAINTENANCE_STOPPED
            if told_so is not (maintenance.state is MaintenanceState.STOPPED):
                raise Wrong(f"news: maintenance {number} is {maintenance.state}")
            outcomes = memory.outcomes(number)
            is_over = not maintenance.open and all(status.over for status in outcomes)
            if number not in self._asked or is_over is not (number in self._finished):
                raise Wrong(f"news: maintenance {number} is over: {is_over}")
