"""`pipeline demo` as a newcomer runs it."""

import re

from pipeline_tests.end_to_end.conftest import ProjectFolder

NEW_YEAR_ROWS = 842


def test_the_demonstration_ends_with_a_table_of_what_is_in_delta(project_folder: ProjectFolder) -> None:
    done = project_folder.command("pipeline", "demo", "--days", "2", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    for name in ("airports", "planes", "sightings", "airport_traffic"):
        table = project_folder.table(name)
        counted = sum(action["num_records"] for action in project_folder.files(name))
        assert int(rows[name][0].replace(",", "")) == counted > 0
        assert int(rows[name][2]) == table.version() == 1
        assert re.fullmatch("[0-9a-f]{12}", rows[name][3])
        assert float(rows[name][4]) > 0
    assert project_folder.rows_by_day()["2013-01-01"] == NEW_YEAR_ROWS
    assert len(project_folder.rows_by_day()) == int(rows["sightings"][1]) == 2
    assert "pipeline materialize sightings --partition 2013-01-03" in done.stdout
    (run,) = project_folder.runs()
    assert run.is_success
