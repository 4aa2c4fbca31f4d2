"""docs/operator.md says something of every input, output and attribute, and its tests are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from gqa_node import needs_stock

PAGE = Path(__file__).parent.parent / "docs" / "operator.md"
OUR_ATTRIBUTES = ["schedule"]


def table(title: str) -> Iterator[list[str]]:
    """Yields the rows of the table under a heading, without its head."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    for row in rows[2:]:
        yield [cell.strip() for cell in row.strip("|").split("|")]


def names(title: str, column: int) -> list[str]:
    """Returns the names in a table's column."""
    return [re.findall(r"`(\w+)`", row[column])[0] for row in table(title)]


@needs_stock(1, 32)
def test_every_part_of_the_stock_operator_has_a_row() -> None:
    (schema,) = (s for s in get_all_operator_schema() if s.name == "GroupQueryAttention")
    assert names("Inputs", 1) == [part.name for part in schema.inputs]
    assert names("Outputs", 1) == [part.name for part in schema.outputs]
    assert sorted(names("Attributes", 0)) == sorted([*schema.attributes, *OUR_ATTRIBUTES])


@pytest.mark.parametrize("title", ["Inputs", "Outputs", "Attributes"])
def test_no_cell_is_empty_and_each_row_names_a_test(title: str) -> None:
    for row in table(title):
        assert all(row), row
        place, test = re.fullmatch(r"\[\w+\]\((.+)\), `(\w+)`", row[-1]).groups()
        assert f"def {test}(" in (PAGE.parent / place).read_text(), row
