"""What holds for every test: with FOREWARN_TESTS_MUST_RUN set, a skipped test is a failure."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

MUST_RUN = "FOREWARN_TESTS_MUST_RUN"

settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get(MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and {MUST_RUN} is set: {report.longrepr}"
    return report
