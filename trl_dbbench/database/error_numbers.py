"""The error numbers of MySQL and MariaDB: who caused an error, and which kind of mistake an agent's error is.

- The environment: no reward may come of it. The sandbox raises `EnvironmentFault`, or marks the result as
  doubtful where the connection still works, and `RetryingSandbox` finds out and tries again.
- A limit that the statement hit: an observation that says which one.
- The agent: an observation, for every number that is not listed as one of the two above.
"""

from __future__ import annotations

import re

ENVIRONMENT_FAULTS: dict[int, str] = {
    2002: "the server's socket cannot be reached",
    2003: "the server cannot be reached",
    2005: "the server's host name is unknown",
    2006: "the server has gone away",
    2013: "the connection was lost during a statement",
    2014: "the connection's protocol is out of step",
    2027: "a malformed packet was received",
    2055: "the connection was lost",
    1021: "the server's disk is full",
    1026: "the server could not write a file",
    1030: "the server's storage engine failed",
    1037: "the server is out of memory",
    1038: "the server is out of sort memory",
    1040: "the server has too many connections",
    1041: "the server is out of memory",
    1042: "the server could not resolve the client's host name",
    1043: "the handshake with the server failed",
    1053: "the server is shutting down",
    1077: "the server has shut down normally",
    1079: "the server is shutting down",
    1114: "the server has no room left for the table",
    1129: "the server blocks this host after too many failed connections",
    1135: "the server cannot create a thread",
    1152: "the server aborted the connection",
    1158: "the server could not read from the network",
    1159: "the server timed out reading from the network",
    1160: "the server could not write to the network",
    1161: "the server timed out writing to the network",
    1184: "the server aborted a new connection",
    # A sandbox has one connection: nobody but the environment (a backup, an administrator) holds its locks.
    1205: "a lock was not granted in time",
    1213: "the server chose the transaction as a deadlock's victim",
    1203: "the account has too many connections",
    1206: "the server's lock table is full",
    1226: "the account has used up a resource of the server",
    1836: "the server is in read-only mode",
    1878: "the server could not write a temporary file",
    1927: "the connection was killed",
    4081: "the server's connections use too much memory together",
    4031: "the server closed the connection after a time without statements",
}

_FULL_DISK = re.compile(
    r"\b(?:err(?:no|code):? (?:28|135)\b|error 28\b|disk (?:is )?full|out of disk space|no space left)",
    re.IGNORECASE,
)

NO_ANSWER = frozenset({0, 2002, 2003, 2005, 2006, 2013})
"""PyMySQL's numbers for a server that says nothing; 0 is SQLAlchemy's for a connection that was lost."""

LOST = 2013
"""PyMySQL's number for a connection that was lost during a statement."""

TOO_LARGE = 2020
"""PyMySQL's number for a row that is larger than we are willing to receive."""

TABLE_FULL = 1114
"""Also what an agent reads whose tables have become too large."""

MEMORY_LIMIT = 4082
"""MySQL's connection_memory_limit. The server closes the connection."""

OPTION_PREVENTS_STATEMENT = 1290
"""An option of the server forbids the statement. MariaDB also has this number for max_session_mem_used."""

TIME_LIMIT = 3024
SYNTAX_ERROR = 1064

TIME_LIMITS = frozenset(
    {
        TIME_LIMIT,  # MySQL's max_execution_time
        1969,  # MariaDB's max_statement_time
    }
)

KILLS = frozenset({1317, 1028, 1907})
"""KILL QUERY, which nobody but us sends, in general and while rows are sorted."""

AGENT_ERRORS: dict[str, frozenset[int]] = {
    "syntax": frozenset({1064, 1065, 1149}),
    "unknown_name": frozenset({1049, 1051, 1054, 1072, 1091, 1109, 1146, 1176, 1193, 1305, 1630}),
    "denied": frozenset({1044, 1045, 1142, 1143, 1227, 1290, 1370, 1410, 1419}),
    "value": frozenset(
        {1048, 1062, 1136, 1138, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1451, 1452}
        | {1690, 3140, 3819, 4025}
    ),
}
"""Kinds of mistakes, each with its numbers. An agent's error that is in none of them is `other`."""

_SQLSTATES = {
    1044: "42000", 1045: "28000", 1046: "3D000", 1048: "23000", 1049: "42000", 1050: "42S01", 1051: "42S02",
    1052: "23000", 1054: "42S22", 1055: "42000", 1060: "42S21", 1061: "42000", 1062: "23000", 1063: "42000",
    1064: "42000", 1065: "42000", 1066: "42000", 1067: "42000", 1068: "42000", 1069: "42000", 1070: "42000",
    1071: "42000", 1072: "42000", 1073: "42000", 1074: "42000", 1075: "42000", 1090: "42000", 1091: "42000",
    1101: "42000", 1102: "42000", 1103: "42000", 1104: "42000", 1106: "42000", 1107: "42000", 1109: "42S02",
    1110: "42000", 1113: "42000", 1115: "42000", 1118: "42000", 1120: "42000", 1121: "42000", 1136: "21S01",
    1138: "42000", 1139: "42000", 1140: "42000", 1141: "42000", 1142: "42000", 1143: "42000", 1146: "42S02",
    1147: "42000", 1148: "42000", 1149: "42000", 1153: "08S01", 1170: "42000", 1171: "42000", 1172: "42000",
    1177: "42000", 1178: "42000", 1222: "21000", 1227: "42000", 1230: "42000", 1231: "42000", 1232: "42000",
    1234: "42000", 1235: "42000", 1239: "42000", 1241: "21000", 1242: "21000", 1247: "42S22", 1248: "42000",
    1249: "01000", 1250: "42000", 1264: "22003", 1265: "01000", 1280: "42000", 1281: "42000", 1292: "22007",
    1300: "HY000", 1303: "2F003", 1304: "42000", 1305: "42000", 1308: "42000", 1309: "42000", 1317: "70100",
    1318: "42000", 1319: "42000", 1327: "42000", 1330: "42000", 1331: "42000", 1365: "22012", 1367: "22007",
    1370: "42000", 1406: "22001", 1407: "42000", 1410: "42000", 1411: "HY000", 1413: "42000", 1415: "0A000",
    1425: "42000", 1426: "42000", 1427: "42000", 1441: "22008", 1451: "23000", 1452: "23000", 1458: "42000",
    1463: "42000", 1582: "42000", 1583: "42000", 1584: "42000", 1586: "23000", 1630: "42000", 1690: "22003",
    3065: "HY000", 3819: "HY000", 4078: "HY000",
}  # fmt: skip


def is_full_disk(text: str) -> bool:
    """Return whether these words of a server say that no space is left. The numbers alone, such as 1005,
    do not."""
    return _FULL_DISK.search(text) is not None


def is_read_only(code: int, text: str) -> bool:
    """Return whether a server refuses changes for a while, as after a failover: it runs with --read-only."""
    return code == OPTION_PREVENTS_STATEMENT and "read-only" in text


def message(code: int, text: str) -> str:
    """The error as MySQL's connector prints it: `1064 (42000): You have an error in your SQL syntax; ...`."""
    return f"{code} ({_SQLSTATES.get(code, 'HY000')}): {text}"
