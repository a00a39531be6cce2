"""Error numbers of MySQL and MariaDB: who caused an error, and the class of an agent's mistake.

An error has one of three causes:

- The environment: the error must not affect a reward. The sandbox raises `EnvironmentFault`, or marks the
  result as doubtful if the connection still works; `RetryingSandbox` then finds the cause and tries again.
- A limit that the statement hit: the agent observes which one.
- The agent: it observes the error. This is the cause of every number not listed under the other two.
"""

from __future__ import annotations

import re

ENVIRONMENT_FAULTS = frozenset(
    {
        # PyMySQL's own numbers: no answer, or an invalid one
        *(0, 2002, 2003, 2005, 2006, 2013, 2014, 2027, 2055),
        *(1021, 1026, 1030, 1114, 1878),  # disk, files, storage engine
        *(1037, 1038, 1041, 1206, 4081),  # memory
        *(1040, 1042, 1043, 1129, 1135, 1203, 1226),  # no connection for the account
        # the connection or the server ends
        *(1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031),
        # lock waits: a sandbox has one connection, so only a backup or an administrator can hold the locks
        *(1205, 1213),
        1836,  # the server is in read-only mode
    }
)

_FULL_DISK = re.compile(
    r"\b(?:err(?:no|code):? (?:28|135)\b|error 28\b|disk (?:is )?full|out of disk space|no space left)",
    re.IGNORECASE,
)

NO_ANSWER = frozenset({0, 2002, 2003, 2005, 2006, 2013})
"""PyMySQL's error numbers for a server that does not answer; 0 is SQLAlchemy's for a lost connection."""

LOST = 2013
"""PyMySQL's error number for a connection that was lost during a statement."""

TOO_LARGE = 2020
"""PyMySQL's error number for a row that is larger than we are willing to receive."""

TABLE_FULL = 1114
"""Error number for a full table, which an agent also reads if its tables have become too large."""

MEMORY_LIMIT = 4082
"""Error number for exceeding MySQL's connection_memory_limit; the server closes the connection."""

OPTION_PREVENTS_STATEMENT = 1290
"""Error number for a statement that a server option forbids; MariaDB's also for max_session_mem_used."""

TIME_LIMIT = 3024
SYNTAX_ERROR = 1064

TIME_LIMITS = frozenset({TIME_LIMIT, 1969})
"""Error numbers for MySQL's max_execution_time and MariaDB's max_statement_time."""

KILLS = frozenset({1317, 1028, 1907})
"""Error numbers after KILL QUERY, in general and while rows are sorted. Only we send it."""

AGENT_ERRORS: dict[str, frozenset[int]] = {
    "syntax": frozenset({1064, 1065, 1149}),
    "unknown_name": frozenset({1049, 1051, 1054, 1072, 1091, 1109, 1146, 1176, 1193, 1305, 1630}),
    "denied": frozenset({1044, 1045, 1142, 1143, 1227, 1290, 1370, 1410, 1419}),
    "value": frozenset(
        {1048, 1062, 1136, 1138, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1451, 1452}
        | {1690, 3140, 3819, 4025}
    ),
}
"""Class of mistake -> error numbers. An agent's error in none of the classes is `other`."""

_SQLSTATES = {
    **dict.fromkeys((
        1044, 1049, 1055, 1056, 1061, 1063, 1064, 1065, 1066, 1067, 1068, 1069, 1070, 1071, 1072, 1073, 1074,
        1075, 1090, 1091, 1101, 1102, 1103, 1104, 1106, 1107, 1110, 1113, 1115, 1118, 1120, 1121,
        1139, 1140, 1141, 1142, 1143, 1147, 1148, 1149, 1170, 1171, 1172, 1177, 1178, 1227, 1230, 1231,
        1232, 1234, 1235, 1239, 1248, 1250, 1280, 1281, 1304, 1305, 1308, 1309, 1318, 1319, 1327, 1330,
        1331, 1370, 1407, 1410, 1413, 1425, 1426, 1427, 1458, 1463, 1582, 1583, 1584, 1630,
    ), "42000"),
    **dict.fromkeys((1048, 1052, 1062, 1451, 1452, 1586), "23000"),
    1222: "21000", 1241: "21000", 1242: "21000", 1051: "42S02", 1109: "42S02", 1146: "42S02", 1249: "01000",
    1265: "01000", 1264: "22003", 1690: "22003", 1292: "22007", 1367: "22007", 1054: "42S22", 1247: "42S22",
    1153: "08S01", 1415: "0A000", 1136: "21S01", 1406: "22001", 1441: "22008", 1365: "22012", 1045: "28000",
    1038: "HY001", 1138: "22004", 3020: "2201E", 3140: "22032", 1303: "2F003",
    1046: "3D000", 1050: "42S01", 1060: "42S21", 1317: "70100",
}  # fmt: skip


def is_full_disk(text: str) -> bool:
    """Return whether a server's error message says that no space is left; a number such as 1005 does not."""
    return _FULL_DISK.search(text) is not None


def is_environment_fault(code: int, text: str = "") -> bool:
    """Return whether an error is a failure that the agent did not cause, or looks like one.

    Args:
        text: the server's message, for errors whose number alone does not tell that the disk is full or the
            server in read-only mode, as after a failover.
    """
    read_only = code == OPTION_PREVENTS_STATEMENT and "read-only" in text
    return code in ENVIRONMENT_FAULTS or is_full_disk(text) or read_only


def is_memory_limit(code: int, text: str) -> bool:
    """Return whether a statement was stopped because its connection took too much memory."""
    return code == MEMORY_LIMIT or (code == OPTION_PREVENTS_STATEMENT and "max-session-mem-used" in text)


def message(code: int, text: str, state: str | None = None) -> str:
    """Return an error as MySQL's connector prints it: `1064 (42000): You have an error in your SQL ...`.

    Args:
        state: the SQLSTATE that the server sent; by default the one that MySQL sends.
    """
    return f"{code} ({state or _SQLSTATES.get(code, 'HY000')}): {text}"
