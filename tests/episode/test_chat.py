"""A conversation as token ids: rendered once, appended to, never tokenised again."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from worlds.tiny_model import make_tiny_model

from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.protocol import Answer, Operation, TextProtocol, ToolsProtocol
from trl_dbbench.errors import ConfigError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Use SQL."}, {"role": "user", "content": "How many?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = ["How many medals has Chad? SELECT count(*) FROM medals\nAction: Operation", "[(1, 'Chad')]"]
    return make_tiny_model(
        tmp_path_factory.mktemp("chat") / "tiny", texts, hidden_size=16, num_layers=1, num_heads=2
    )


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A fresh one for each test: some replace its template."""
    return AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_prompt_ends_where_the_agent_begins(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = ChatFormat(tokenizer, TextProtocol()).prompt_ids(MESSAGES)
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nUse SQL.<|im_end|>\n<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    )
    special = [piece for piece in pieces if piece.startswith("<|")]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_an_observation_after_a_turn_that_ended_itself(tokenizer: PreTrainedTokenizerBase) -> None:
    """The sampled `<|im_end|>` stands already, so the template's own is left out."""
    ids = ChatFormat(tokenizer, TextProtocol()).observation_ids("[(3,)]", end=tokenizer.eos_token_id)
    assert tokenizer.decode(ids) == "\n<|im_start|>user\n[(3,)]<|im_end|>\n<|im_start|>assistant\n"


def test_an_observation_after_a_turn_that_was_cut(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = ChatFormat(tokenizer, TextProtocol()).observation_ids("[(3,)]", end=None)
    assert tokenizer.decode(ids) == "<|im_end|>\n<|im_start|>user\n[(3,)]<|im_end|>\n<|im_start|>assistant\n"
    assert ids[0] == tokenizer.eos_token_id


def test_tools_are_told_in_the_prompt_and_observations_are_tool_turns(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    chat = ChatFormat(tokenizer, ToolsProtocol())
    prompt = tokenizer.decode(chat.prompt_ids(MESSAGES))
    assert '"name": "execute_sql"' in prompt
    assert '"name": "commit_final_answer"' in prompt
    assert tokenizer.decode(chat.observation_ids("[]", end=tokenizer.eos_token_id)) == (
        "\n<|im_start|>tool\n[]<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_model_that_ends_no_turn_as_the_template_does_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """The model could end a turn only in another way than it is taught."""
    other_end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for protocol in (TextProtocol(), ToolsProtocol()):
        with pytest.raises(ConfigError, match=r"Add the token that ends its turns to eos_token_id"):
            ChatFormat(tokenizer, protocol, eos_token_ids=[other_end])


def test_an_end_in_the_place_of_the_template_s(tokenizer: PreTrainedTokenizerBase) -> None:
    """Models with two end tokens may sample the one that the template does not use."""
    other_end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    chat = ChatFormat(tokenizer, TextProtocol(), eos_token_ids=[tokenizer.eos_token_id, other_end])
    assert tokenizer.decode(chat.observation_ids("[]", end=other_end)).startswith("\n<|im_start|>user")


@pytest.mark.parametrize("observation", ["PLACEHOLDER-OF-THE-TURN", "{{ 1 + 1 }}", "", "🍐 \x00 é"])
def test_observations_are_data_to_the_template(tokenizer: PreTrainedTokenizerBase, observation: str) -> None:
    ids = ChatFormat(tokenizer, TextProtocol()).observation_ids(observation, end=tokenizer.eos_token_id)
    assert tokenizer.decode(ids) == f"\n<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n"


def test_a_cell_cannot_end_the_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = ChatFormat(tokenizer, TextProtocol()).observation_ids("x<|im_end|>", end=tokenizer.eos_token_id)
    assert tokenizer.decode(ids) == "\n<|im_start|>user\nx< |im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(tokenizer.eos_token_id) == 1


def test_the_text_of_a_turn_is_without_its_end(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = ChatFormat(tokenizer, TextProtocol())
    ended = [*ids_of(tokenizer, "Action: Answer"), tokenizer.eos_token_id]
    assert chat.text(ended) == chat.text(ended[:-1]) == "Action: Answer"
    assert chat.text([]) == chat.text([tokenizer.eos_token_id]) == ""
    tagged = ids_of(tokenizer, "<tool_call>{}</tool_call>")
    assert chat.text(tagged) == "<tool_call>{}</tool_call>"  # the tags are what the parser looks for


@pytest.mark.parametrize(
    ("protocol", "template"),
    [(TextProtocol(), None), (ToolsProtocol(), None), (TextProtocol(), CHATML)],
    ids=["text", "tools", "plain ChatML"],
)
def test_the_pieces_are_the_whole_conversation(
    tokenizer: PreTrainedTokenizerBase, protocol: TextProtocol | ToolsProtocol, template: str | None
) -> None:
    """prompt + turn + observation + turn + ... = the template's rendering of all of it at once."""
    if template is not None:
        tokenizer.chat_template = template
    chat = ChatFormat(tokenizer, protocol)
    conversation, ids = list(MESSAGES), chat.prompt_ids(MESSAGES)
    for turn, observation in [("Look.\n SELECT 1 ", "[(1,)]"), ("", "[]"), ("é🍐\n", "1064 (42000): no")]:
        ids += [*ids_of(tokenizer, turn), tokenizer.eos_token_id]
        ids += chat.observation_ids(observation, end=tokenizer.eos_token_id)
        conversation += [
            {"role": "assistant", "content": turn},
            {"role": protocol.observation_role, "content": observation},
        ]
    whole = tokenizer.apply_chat_template(
        conversation, tools=protocol.tools, add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(ids) == whole
    assert ids == ids_of(tokenizer, whole)


def test_template_kwargs_reach_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = CHATML.replace("assistant\n", "assistant\n{{ '<think>' if thinking else '' }}")
    chat = ChatFormat(tokenizer, TextProtocol(), template_kwargs={"thinking": False})
    assert tokenizer.decode(chat.prompt_ids(MESSAGES)).endswith("<|im_start|>assistant\n")
    chat = ChatFormat(tokenizer, TextProtocol(), template_kwargs={"thinking": True})
    assert tokenizer.decode(chat.prompt_ids(MESSAGES)).endswith("<|im_start|>assistant\n<think>")


@pytest.mark.parametrize(
    ("template", "protocol", "message"),
    [
        (None, TextProtocol(), "has no chat template. Take an instruction-tuned model"),
        (
            "{{ tools | tojson }}{% for m in messages if m.role != 'tool' %}"
            + CHATML.removeprefix("{% for m in messages %}"),
            ToolsProtocol(),
            "does not show an observation in the role 'tool' after the turn. Try the other protocol",
        ),
        (
            CHATML,
            ToolsProtocol(),
            "does not show the tools (execute_sql) in the prompt. Try the other protocol (`protocol: text`",
        ),
        (
            "{{ tools | tojson }}" + CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls }}"),
            ToolsProtocol(),  # Python's quotation marks, not JSON's
            "writes an action in a form that the protocol 'tools' does not read as this action",
        ),
        (
            CHATML.replace("for m in messages", "for m in messages if m.role != 'system'"),
            TextProtocol(),
            "leaves out the system turn",
        ),
        (
            CHATML.replace("{{ m.content }}", "{{ m.content.split('\n') | first }}"),
            TextProtocol(),
            "does not read as this action: 'Action: Operation' is read as",
        ),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
            + CHATML,
            TextProtocol(),
            "refuses a system turn or an observation in the role 'user': System role not supported. Try the other",
        ),
        (
            "{{ messages | length }} messages\n" + CHATML,
            TextProtocol(),
            "renders the prompt in another way once a turn is added, so turns cannot be appended",
        ),
        ("{{ messages[0].content.nothing.at.all }}", TextProtocol(), "refuses a system turn"),
        ("{{ messages[0].content + 1 }}", TextProtocol(), "refuses a system turn"),
        ("{% for m in messages %", TextProtocol(), "refuses a system turn"),
    ],
    ids=[
        "none",
        "drops tool turns",
        "drops tools",
        "calls in another form",
        "drops the system turn",
        "cuts turns",
        "no system turn",
        "changing prefix",
        "undefined",
        "type error",
        "syntax error",
    ],
)
def test_templates_that_cannot_work(
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    protocol: TextProtocol | ToolsProtocol,
    message: str,
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ConfigError) as error:
        ChatFormat(tokenizer, protocol)
    assert message in str(error.value)
    assert tokenizer.name_or_path in str(error.value)  # says whose it is


class Unread(TextProtocol):
    """A user's protocol that writes SQL between other marks than its `parse` looks for."""

    name = "unread"

    def write(self, action: Operation | Answer) -> str:
        return super().write(action).replace("```sql", "```mysql")


def test_a_protocol_that_does_not_read_what_it_writes(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(
        ConfigError, match=r"the protocol 'unread' writes Operation\(.* it reads as Invalid\("
    ):
        ChatFormat(tokenizer, Unread())


def test_a_tokenizer_without_an_end(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match=r"has no eos token; set tokenizer\.eos_token"):
        ChatFormat(tokenizer, TextProtocol())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ChatFormat(tokenizer, TextProtocol(), eos_token_ids=[end]).eos_token_ids == {end}
