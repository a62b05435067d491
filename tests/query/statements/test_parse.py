"""Divide SQL statements at their keywords."""

from __future__ import annotations

import pytest

from icefloe.errors import InvalidInputError
from icefloe.query.statements.parse import (
    MATCHED,
    NOT_MATCHED,
    NOT_MATCHED_BY_SOURCE,
    Assignment,
    CreateRef,
    DeleteCells,
    DropRef,
    Insert,
    InsertCells,
    Merge,
    MergeClause,
    SetValues,
    ShowRefs,
    TargetName,
    UpdateOrDelete,
    parse_statement,
)


def test_merge_statement_is_split_only_at_its_own_keywords() -> None:
    text = (
        "MERGE INTO era5 VERSION AS OF 'dev' AS t USING (SELECT * FROM u WHERE a = 1) AS s"
        " ON (t.x = s.x AND t.y BETWEEN 1 AND 2)"
        " WHEN MATCHED AND s.v > CASE WHEN s.w = 1 THEN 2 ELSE 3 END THEN UPDATE SET a = f(s.a, 1),"
        " t.`b c` = 2"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY TARGET THEN INSERT (x, a) VALUES (s.x, g(1, 2))"
        " WHEN NOT MATCHED BY SOURCE THEN UPDATE SET a = 0;"
    )

    assert parse_statement(text, ["ERA5"]) == Merge(
        TargetName("ERA5", "era5 VERSION AS OF 'dev' AS t", "t"),
        "(SELECT * FROM u WHERE a = 1) AS s",
        "s",
        ("t.x = s.x", "t.y BETWEEN 1 AND 2"),
        (
            MergeClause(
                MATCHED,
                "s.v > CASE WHEN s.w = 1 THEN 2 ELSE 3 END",
                SetValues((Assignment("a", "f(s.a, 1)"), Assignment("b c", "2"))),
            ),
            MergeClause(MATCHED, None, DeleteCells()),
            MergeClause(NOT_MATCHED, None, InsertCells((Assignment("x", "s.x"), Assignment("a", "g(1, 2)")))),
            MergeClause(NOT_MATCHED_BY_SOURCE, None, SetValues((Assignment("a", "0"),))),
        ),
    )


def test_parenthesized_conjuncts_are_separate_conditions() -> None:
    text = "MERGE INTO r t USING s ON ((t.x = s.x AND (t.y = s.y)) AND (t.z = 1 OR s.z = 1)) WHEN MATCHED"

    merge = parse_statement(f"{text} THEN DELETE", ["r"])

    assert isinstance(merge, Merge)
    assert merge.on == ("t.x = s.x", "t.y = s.y", "t.z = 1 OR s.z = 1")


def test_update_delete_and_insert_keep_their_conditions_unchanged() -> None:
    where = "WHERE x IN (SELECT y FROM z WHERE q = 'SET')"

    assert parse_statement(f"UPDATE r.g AS t SET a = (SELECT 1), b = 2 {where}", ["r"]) == UpdateOrDelete(
        TargetName("r", "r.g AS t", "t"),
        SetValues((Assignment("a", "(SELECT 1)"), Assignment("b", "2"))),
        where,
    )
    assert parse_statement(f"delete from r {where}", ["r"]) == UpdateOrDelete(
        TargetName("r", "r", "r"), DeleteCells(), where
    )
    assert parse_statement("INSERT INTO r VERSION AS OF 'dev' (a, `b`) VALUES (1, 2)", ["r"]) == Insert(
        TargetName("r", "r VERSION AS OF 'dev'", "r"), ("a", "b"), False, "VALUES (1, 2)"
    )
    assert parse_statement("INSERT INTO TABLE r BY NAME SELECT 1 AS a", ["r"]) == Insert(
        TargetName("r", "r", "r"), None, True, "SELECT 1 AS a"
    )


def test_statements_about_refs_may_omit_the_only_repository() -> None:
    assert parse_statement("show branches", ["r"]) == ShowRefs("branch", "r")
    assert parse_statement("SHOW TAGS IN r", ["q", "r"]) == ShowRefs("tag", "r")
    assert parse_statement("CREATE TAG v1 IN r TIMESTAMP AS OF '2024-05'", ["q", "r"]) == CreateRef(
        "tag", "v1", "r", False, "2024-05", True
    )
    assert parse_statement("ALTER TABLE r DROP BRANCH IF EXISTS dev", ["q", "r"]) == DropRef(
        "branch", "dev", "r", True
    )
    with pytest.raises(InvalidInputError, match="name the repository"):
        parse_statement("SHOW BRANCHES", ["q", "r"])


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "UPDATE other SET a = 1", "SHOW TABLES", "CREATE TABLE t (a INT)"],
)
def test_unrecognized_statements_are_passed_to_spark(text: str) -> None:
    assert parse_statement(text, ["r"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "MERGE INTO r USING s ON r.a = s.a",
        "MERGE INTO r USING s ON r.a = s.a WHEN MATCHED THEN INSERT *",
        "MERGE INTO r USING s ON r.a = s.a WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)",
        "UPDATE r SET a = 1, A = 2",
        "UPDATE r SET",
        "CREATE BRANCH IN r",
        "CREATE BRANCH dev IN",
        "MERGE r",
        "DROP TAG v1 IN r AS OF VERSION 'x'",
        "WITH q AS (SELECT 1) INSERT INTO r SELECT * FROM q",
        "UPDATE r SET a = s.a FROM s WHERE s.x = r.x",
        "DELETE FROM r USING s WHERE s.x = r.x",
    ],
)
def test_incomplete_statements_raise_one_clear_error(text: str) -> None:
    with pytest.raises(InvalidInputError, match="the statement cannot be parsed"):
        parse_statement(text, ["r"])
