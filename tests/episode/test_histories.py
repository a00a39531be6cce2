"""Histories that are rewritten: what each turn is sampled after, and where its tokens lie in the episode's tree."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from fakes import RULES, ScriptedEngine, sequences
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import AFTER_A_SUMMARY, ASK_FOR_A_SUMMARY, Player
from trl_dbbench.episode.protocol import Answer, Invalid, Operation, Reply, get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.token_tree import NOTHING, TokenTree, paths
from trl_dbbench.episode.types import Completion, Episode, Rules, Sampling, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task

COUNT = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders\n```"
LATE = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders WHERE late = 1\n```"
ANSWER = "Action: Answer\nFinal Answer: [(2,)]"


def thinking(thought: str, said: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{said}"


TURNS = [thinking("All of them first.", COUNT), thinking("Now the late ones.", LATE), ANSWER]


@pytest.fixture
def qwen3(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A template that drops the thoughts before the last message of the user's, as observations are here."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = load_chat_template("qwen3")
    return own


def played(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    database: Database,
    rules: Rules = RULES,
    history: str = "template",
) -> tuple[Episode, ScriptedEngine]:
    player = Player.of(tokenizer, database, rules=rules, history=history)
    engine = ScriptedEngine(tokenizer, {0: TURNS})
    (episode,) = player.play_all([player.start(task, system_prompt="Rules.")], engine)
    return episode, engine


def served(episode: Episode, tokenizer: PreTrainedTokenizerBase, turns: int, first: int = 0) -> str:
    """The prompt that a server shows the model before a turn."""
    messages = get_protocol("text").messages(episode.task, "Rules.")
    for turn in episode.turns[first:turns]:
        messages += [
            {"role": "assistant", "content": turn.text},
            {"role": "user", "content": turn.observation},
        ]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def test_a_tree_by_hand() -> None:
    tree = TokenTree([1, 2, 3])
    assert tree.find([1, 2, 9]) == (2, 1)
    end = tree.add([7, 8], after=2)  # a turn
    assert end == 4 and tree.find([1, 2, 3, 7, 8]) == (5, 4)
    tree.add([8, 5], after=tree.find([1, 2, 3])[1])  # the next turn reads the first without its 7
    assert tree.ids == [1, 2, 3, 7, 8, 8, 5]
    assert tree.follows == [NOTHING, 0, 1, 2, 3, 2, 5]
    assert paths(tree.follows) == [[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]]
    assert tree.find([9]) == (0, NOTHING)


def test_what_each_token_of_an_episode_follows(late_orders: Task) -> None:
    """Prompt 1 2 3; turn 1 is 7 8, observation 9; turn 2 reads 1 2 3 8 9 and says 4; turn 3 reads all and says 5."""
    episode = Episode(late_orders, [1, 2, 3], Sampling())
    one, two, three = (Turn(Completion(ids, [0.0] * len(ids)), "", Invalid("")) for ids in ([7, 8], [4], [5]))
    one.observation_ids, two.observation_ids = [8, 9], [6]
    episode.turns = [one, two, three]
    assert episode.follows is None
    two.follows = 2
    assert episode.completion_ids == [7, 8, 8, 9, 4, 6, 5]
    assert episode.mask == [1, 1, 0, 0, 1, 0, 1]
    assert episode.follows == [2, 3, 2, 5, 6, 7, 8]


def test_a_turn_reads_what_a_server_would_show(
    late_orders: Task, qwen3: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """No thoughts of earlier turns. Their other tokens are those that were sampled."""
    episode, engine = played(late_orders, qwen3, sqlite_database)
    assert episode.right
    for number, request in enumerate(engine.requests):
        assert qwen3.decode(request.ids) == served(episode, qwen3, number)
    assert "<think>" not in qwen3.decode(engine.requests[2].ids)
    assert "<think>" in qwen3.decode(episode.turns[1].completion.ids)


def test_each_turn_of_the_tree_is_its_request_and_its_tokens(
    late_orders: Task, qwen3: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode, engine = played(late_orders, qwen3, sqlite_database)
    assert sequences(episode) == [
        [*request.ids, *turn.completion.ids]
        for request, turn in zip(engine.requests, episode.turns, strict=True)
    ]
    # a first turn with a thought is read by no other; the second one reads its SQL, and the third both
    tokens = len(episode.prompt_ids) + len(episode.completion_ids)
    assert tokens < sum(len(request.ids) for request in engine.requests)


def test_a_template_that_keeps_all_is_played_as_before(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    one, _ = played(late_orders, tokenizer, sqlite_database)
    other, _ = played(late_orders, tokenizer, sqlite_database, history="kept")
    assert one.follows is None
    assert one.completion_ids == other.completion_ids


def test_the_oldest_turns_are_left_out(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Turn 3 reads the prompt and turn 2: with turn 1 it would be more than 150 tokens."""
    rules = Rules(max_turns=3, max_turn_tokens=4096, max_completion_length=20_000, compaction_tokens=150)
    episode, engine = played(late_orders, tokenizer, sqlite_database, rules, history="kept")
    assert episode.right
    shown = [tokenizer.decode(request.ids) for request in engine.requests]
    assert shown[1] == served(episode, tokenizer, 1)
    assert len(tokenizer(served(episode, tokenizer, 2))["input_ids"]) > 150
    assert shown[2] == served(episode, tokenizer, 2, first=1)
    # where turn 2 parts from turn 1: both begin with a thought
    one, two = (turn.completion.ids for turn in episode.turns[:2])
    common = next(place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert episode.turns[1].follows is None
    assert episode.turns[2].follows == len(episode.prompt_ids) - 1 + common


class Numbered(ScriptedEngine):
    """Says `turns[number]`; the summary before turn 2 has the number 1002."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, turns: dict[int, str]):
        super().__init__(tokenizer, {0: turns})


def test_a_summary_in_the_place_of_the_turns(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Before turn 3, whose prompt and turns would be more than 150 tokens, the agent sums up."""
    rules = replace(RULES, compaction_tokens=150, compaction="summary")
    player = Player.of(tokenizer, sqlite_database, rules=rules)
    engine = Numbered(tokenizer, {0: TURNS[0], 1: TURNS[1], 1002: "Two of three are late.", 2: TURNS[2]})
    (episode,) = player.play_all([player.start(late_orders, system_prompt="Rules.")], engine)
    assert episode.right
    assert [turn.action for turn in episode.turns] == [
        Operation("SELECT COUNT(*) FROM orders"),
        Operation("SELECT COUNT(*) FROM orders WHERE late = 1"),
        Reply("Two of three are late."),
        Answer("[(2,)]"),
    ]
    shown = [tokenizer.decode(request.ids) for request in engine.requests]
    question = served(episode, tokenizer, 0).removesuffix("<|im_start|>assistant\n")
    assert shown[2] == served(episode, tokenizer, 2).replace("[(2,)]", f"[(2,)]\n\n{ASK_FOR_A_SUMMARY}")
    assert shown[3] == (
        f"{question}<|im_start|>assistant\nTwo of three are late.<|im_end|>\n"
        f"<|im_start|>user\n{AFTER_A_SUMMARY}<|im_end|>\n<|im_start|>assistant\n"
    )
    # each turn's path in the tree is what it was sampled after, and its own tokens
    assert sequences(episode) == [
        [*request.ids, *turn.completion.ids]
        for request, turn in zip(engine.requests, episode.turns, strict=True)
    ]


def test_an_unknown_history(tokenizer: PreTrainedTokenizerBase, sqlite_database: Database) -> None:
    with pytest.raises(ConfigError, match="unknown history 'short'; allowed: kept, template"):
        Player.of(tokenizer, sqlite_database, history="short")


def test_an_episode_that_goes_on_from_turns_of_another(
    late_orders: Task, qwen3: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """As `vine` asks for: the turns are the same, and so is what the next one reads."""
    whole, first = played(late_orders, qwen3, sqlite_database)
    player = Player(
        ChatFormat(qwen3, get_protocol("text"), history="template"),
        sqlite_database,
        Judge(sqlite_database),
        RULES,
    )
    start = replace(player.start(late_orders, system_prompt="Rules."), past=whole.turns[:2])
    engine = ScriptedEngine(qwen3, {0: TURNS})
    (again,) = player.play_all([start], engine)
    assert engine.requests[0].ids == first.requests[2].ids
    assert (again.completion_ids, again.follows) == (whole.completion_ids, whole.follows)
