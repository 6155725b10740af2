"""Configuration, rows and fingerprint: what a run means, and what is refused before it begins."""

import json
from pathlib import Path

import pytest

from orchestrator.collect import ConfigError, load_config, load_rollouts, plan_rollouts
from orchestrator.collect.config import ResourcesTable
from orchestrator.collect.fingerprint import check_same, fingerprint
from orchestrator.collect.rows import dataset_digest

pytestmark = pytest.mark.unit

CONFIG = """
[run]
input = "rows.jsonl"
output = "out.jsonl"
[model]
base_url = "http://localhost:1/v1"
model = "m"
[resources.counter]
server = "participants.servers.counter:CounterServer"
"""


def write(folder: Path, config: str = CONFIG, rows: str = '{"a": 1}\n{"a": 2}\n{"a": 1}\n') -> Path:
    """A configuration with its rows."""
    (folder / "rows.jsonl").write_text(rows)
    path = folder / "run.toml"
    path.write_text(config)
    return path


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[run]", "colour = 1\n[run]", r"colour: there is no such key; there are run, model, models, agent, "),
        ("[model]", "colour = 1\n[model]", r"run\.colour: there is no such key; there are input, task_set, output, "),
        ("[model]", "[model]\nmodle = 'x'", r"model\.modle: .*there are base_url, model, .*\. Did you mean model\?$"),
        ("[model]", "[capture]\nfolder = 'x'\nurl = 'y'\n[model]", r"capture\.url: .*there are folder$"),
        (
            "[resources.counter]",
            "[resources.counter]\nsize = 3",
            r"resources\.counter\.size: .*there are server, options$",
        ),
        (
            'input = "rows.jsonl"',
            'task_set = { name = "x", sise = 3 }',
            r"run\.task_set\.sise: .*there are name, size, seed, config, calculator\. Did you mean size\?$",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_those_that_there_are(tmp_path: Path, old: str, new: str, says: str) -> None:
    """Of its own table."""
    with pytest.raises(ConfigError, match=says):
        load_config(write(tmp_path, CONFIG.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("table", "line", "says"),
    [
        ("run", 'concurrency = "8"', r"run\.concurrency: .* valid integer$"),
        ("run", "concurrency = 8.0", r"run\.concurrency: .* valid integer$"),
        ("run", "repeats = true", r"run\.repeats: .* valid integer$"),
        ("run", 'close_s = "10"', r"run\.close_s: .* valid number$"),
        ("model", 'cuts = "no"', r"model\.cuts: .* valid boolean$"),
        ("model", "cuts = 0", r"model\.cuts: .* valid boolean$"),
        ("model", "api_key_env = 1", r"model\.api_key_env: .* valid string$"),
        ("model", 'api_key_env = ""', r"model\.api_key_env: .* at least 1 character$"),
        ("model", "parameters = 1", r"model\.parameters: this is a table, and it has another value$"),
        ("run", "close_s = 1e10", r"run\.close_s: it may be 604800 seconds at most, a week$"),
        ("model", "timeout_s = 1e300", r"model\.timeout_s: it may be 604800 seconds at most, a week$"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path: Path, table: str, line: str, says: str) -> None:
    """Nothing is taken for what it looks like, as TOML has types, and no time is longer than what can be kept."""
    with pytest.raises(ConfigError, match=says):
        load_config(write(tmp_path, CONFIG.replace(f"[{table}]", f"[{table}]\n{line}", 1)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agent = 1\n", r"agent: this is a table, and it has another value$"),
        ("capture = { dir = 'x' }\n", r"capture\.dir: there is no such key; there are folder$"),
        ("capture = { folder = '' }\n", r"capture\.folder: it is empty$"),
        ("agent = { server = 'mine' }\n", r"agent\.server: 'mine' is no module:Class$"),
        ("resources.other = { server = '' }\n", r"resources\.other\.server: '' is no module:Class$"),
        ("resources.'a b' = { server = 'a:B' }\n", r"resources: participant name 'a b' is refused"),
        (
            "fleet = { servers.model.main.workers = 1 }\n",
            r'fleet\.servers: write the role in quotes, as in "model\.main"$',
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    """In words of TOML, and a wrong key before what it stands for is said to be missing."""
    with pytest.raises(ConfigError, match=says):
        load_config(write(tmp_path, text + CONFIG))


def test_whole_numbers_are_numbers_and_arrays_are_what_they_hold(tmp_path: Path) -> None:
    """Seconds need no point, and a task set may name several data sets."""
    text = CONFIG.replace("[run]", "[run]\nclose_s = 3", 1)
    text = text.replace('input = "rows.jsonl"', 'task_set = { name = ["a", "b"] }', 1)
    run = load_config(write(tmp_path, text)).run
    assert run.close_s == 3.0
    assert run.task_set is not None
    assert run.task_set.name == ("a", "b")


JUDGE = '[models.judge]\nbase_url = "http://localhost:2/v1"\nmodel = "j"\n'


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (JUDGE.replace("judge", "main"), r"models: model\.main is the one of \[model\]"),
        (JUDGE.replace("judge", '"Two Words"'), r"models: .*Two Words"),
        (f'{JUDGE}dialect = "chat"', "judge: dialect .* who asks it"),
        (f"{JUDGE}parameters = {{ temperature = 1.0 }}", "judge: parameters .* who asks it"),
        (f"{JUDGE}colour = 1", r"models\.judge\.colour: .*there are base_url, model, "),
        ("[models.judge]\nmodel = 'j'", r"models\.judge\.base_url: Field required"),
    ],
)
def test_a_further_model_that_cannot_be_is_refused(tmp_path: Path, table: str, says: str) -> None:
    """Its name is a role's, and what only the policy's agent would heed has no effect there."""
    with pytest.raises(ConfigError, match=says):
        load_config(write(tmp_path, CONFIG + table))


def test_a_run_with_another_judge_is_another_run(tmp_path: Path) -> None:
    """The name of the model counts, and where it is served does not."""
    fields = []
    for judge in (JUDGE, JUDGE.replace("localhost:2", "localhost:3"), JUDGE.replace('"j"', '"k"')):
        config = load_config(write(tmp_path, CONFIG + judge))
        fields.append(fingerprint(config, load_rollouts(config)))
    assert fields[0] == fields[1]
    assert [name for name in fields[0] if fields[0][name] != fields[2][name]] == ["models.judge"]


def test_checkpoints_are_off_unless_enabled_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """The smallest configuration has no checkpoints, and means files beside itself."""
    config = load_config(write(tmp_path))
    assert not config.checkpoint.enabled
    assert config.run.output == str(tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[model]", "colour = 1\n[model]", "run.colour"),
        ('model = "m"', 'model = "m"\ndialect = "smoke"', "model.dialect"),
        ("http://", "http://me:secret@", "credentials"),
        ("http://", "", r"model\.base_url: .*no http:// or https:// URL"),
        ("http://", "ftp://", r"model\.base_url: .*no http:// or https:// URL"),
        ("http://localhost:1", "http://", r"model\.base_url: .*no http:// or https:// URL"),
        ("localhost:1", "localhost:none", r"model\.base_url"),
        ('"out.jsonl"', '""', r"run\.output"),
        (
            'model = "m"',
            'model = "m"\nparameters = { since = 2024-01-01 }',
            r"model\.parameters: .*since cannot be written as JSON",
        ),
        (
            'model = "m"',
            'model = "m"\nparameters = { top = nan }',
            r"model\.parameters: .*top cannot be written",
        ),
        (
            'model = "m"',
            f'model = "m"\nparameters = {{ seed = {10**30} }}',
            r"model\.parameters: .*seed cannot be written as JSON",
        ),
        ('Server"', f'Server"\noptions = {{ big = {2**64} }}', r"resources\.counter\.options: big cannot be written"),
        ('Server"', 'Server"\noptions = { top = inf }', r"resources\.counter\.options: top cannot be written"),
        ('Server"', 'Server"\noptions = { since = [1979-05-27T07:32:00Z] }', r"options: since cannot be written"),
        ("[resources", f"[agent]\nmax_steps = {2**64}\n[resources", r"agent\.max_steps"),
        ("[resources", "[agent]\nmax_wall_s = inf\n[resources", r"agent\.max_wall_s"),
        ("[resources", "[agent]\noptions = { words = 3 }\n[resources", r"agent: options are those of an agent of"),
        (
            "[resources",
            '[agent]\nserver = "a:B"\noptions = { max_steps = 3 }\n[resources',
            r"agent: max_steps stands in \[agent\] itself, not in its options",
        ),
        (
            "[resources",
            '[checkpoint]\ntoken_env = "T"\n[resources',
            r"checkpoint\.token_env: there is no such key",
        ),
        ('input = "rows.jsonl"', "", "either input or task_set"),
        ("[resources", "[checkpoint]\nenabled = true\n[resources", "needs a url"),
        ("[resources", '[checkpoint]\nurl="x"\nlease_s = 5\n[resources', "lease_s must be longer"),
        ("[resources", '[checkpoint]\nurl="x"\nlease_s = 604801\n[resources', "604800 seconds at most, a week"),
        ("[run]", "[run", "cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    """One sentence names the file and the key, and never repeats a credential."""
    with pytest.raises(ConfigError, match=says) as refusal:
        load_config(write(tmp_path, CONFIG.replace(old, new, 1)))
    assert "secret" not in str(refusal.value)


def test_options_with_keys_that_json_lacks_are_refused() -> None:
    """A configuration that no TOML file made is held to the same."""
    with pytest.raises(ValueError, match="deep cannot be written as JSON"):
        ResourcesTable(server="a:B", options={"deep": [{1: "one"}]})


DEEP = '{"a": 1}\n{"a": ' + "[" * 500 + "]" * 500 + "}\n"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", "no rows"),
        ('{"a": 1}\n{"a": }\n', r"rows\.jsonl, line 2"),
        ("[1]\n", "line 1: it is not a JSON object"),
        ('{"a": 1}\n{"responses_create_params": [1]}', "line 2: its responses_create_params is not a JSON object"),
        ('{"responses_create_params": "x"}', "line 1: its responses_create_params"),
        ('{"responses_create_params": 5}', "line 1: its responses_create_params"),
        ('{"responses_create_params": []}', "line 1: its responses_create_params"),
        (DEEP, r"rows\.jsonl, line 2: it is nested too deep"),
        (DEEP.replace("[" * 300, "").replace("]" * 300, ""), "line 2: it is nested too deep"),
        ('{"a": [18446744073709551616]}', "line 1: the number 18446744073709551616 is no integer of 64 bits"),
        ('{"a": -9223372036854775809}', "line 1: the number -9223372036854775809 is no integer"),
        ('{"a": ' + "1" * 200 + "}", "line 1: the number 1111"),
    ],
)
def test_an_input_that_cannot_be_used_is_refused_by_line(tmp_path: Path, rows: str, says: str) -> None:
    """An empty input, and a line that is no JSON, no object, asks with no object, or would not be kept as it is."""
    with pytest.raises(ConfigError, match=says):
        load_rollouts(load_config(write(tmp_path, rows=rows)))


def test_a_row_without_parameters_or_with_some_depth_is_an_input(tmp_path: Path) -> None:
    """Null parameters are as good as none, and a hundred levels are not too deep."""
    deep = '{"a": ' + "[" * 100 + "]" * 100 + "}"
    rows = f'{{"responses_create_params": null}}\n{deep}\n'
    assert len(load_rollouts(load_config(write(tmp_path, rows=rows)))) == 2


def test_what_editors_and_other_systems_leave_in_a_file_changes_no_row(tmp_path: Path) -> None:
    """A byte order mark, line ends of two characters, and separators of lines inside of texts; large integers stay."""
    rows = [{"a": "\u2028 \x0b \u0085 1234567890123456789012"}, {"b": [2**64 - 1, -(2**63), 1.2345678901234567e30]}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    config = load_config(write(tmp_path, rows="x"))
    Path(config.run.input or "").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [rollout.row for rollout in load_rollouts(config)] == rows


def test_a_rollout_is_named_by_its_content_and_never_by_its_position(tmp_path: Path) -> None:
    """Reordered rows are the same rollouts; equal rows are told apart; a changed row is another rollout."""
    rows = [{"a": 1}, {"a": 1}, {"a": 2}]  # Other than backwards.
    ids = [rollout.rollout_id for rollout in plan_rollouts(rows, 2)]
    assert len(set(ids)) == 6
    assert {r.rollout_id for r in plan_rollouts(rows[::-1], 2)} == set(ids)
    assert not {r.rollout_id for r in plan_rollouts([{"a": 3}], 2)} & set(ids)
    assert dataset_digest(plan_rollouts(rows, 1)) == dataset_digest(plan_rollouts(rows[::-1], 3))


def test_a_task_set_makes_rows_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    """A named set of reasoning-gym is an input; a name that it does not have is a mistake in the configuration."""
    pytest.importorskip("reasoning_gym")
    inline = 'task_set = { name = "chain_sum", size = 3, seed = 1 }'
    config = load_config(write(tmp_path, CONFIG.replace('input = "rows.jsonl"', inline)))
    assert len(load_rollouts(config)) == 3
    wrong = load_config(write(tmp_path, CONFIG.replace('input = "rows.jsonl"', inline.replace("chain_sum", "smoke"))))
    with pytest.raises(ConfigError, match=r"run\.task_set: there is no such data set: 'smoke'"):
        load_rollouts(wrong)
    for settings in ("nope = 1", 'min_terms = "x"', "min_terms = 9, max_terms = 2"):
        other = inline.replace("seed = 1", f"config = {{ {settings} }}")
        refused = load_config(write(tmp_path, CONFIG.replace('input = "rows.jsonl"', other)))
        with pytest.raises(ConfigError, match=r"run\.task_set: the data set chain_sum does not take these settings: "):
            load_rollouts(refused)
    with pytest.raises(ConfigError, match=r"run\.task_set\.name"):
        load_config(write(tmp_path, CONFIG.replace('input = "rows.jsonl"', inline.replace('"chain_sum"', "[]"))))


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ('model = "m"', 'model = "n"', {"model"}),
        ('model = "m"', 'model = "m"\nparameters = { seed = 1 }', {"parameters"}),
        ("[resources", "[agent]\nmax_steps = 3\n[resources", {"agent"}),
        ('Server"', 'Server"\noptions = { session_ttl_s = 5.0 }', {"resources.counter"}),
        ('output = "out.jsonl"', 'output = "out.jsonl"\nrepeats = 2', {"repeats"}),
        ('output = "out.jsonl"', 'output = "out.jsonl"\nlimit = 1', {"dataset"}),
        ("localhost:1", "example.org:2", set()),
        ('output = "out.jsonl"', 'output = "b.jsonl"\nconcurrency = 7', set()),
    ],
)
def test_the_fingerprint_has_what_a_run_means_and_nothing_of_where_it_runs(
    tmp_path: Path, old: str, new: str, fields: set[str]
) -> None:
    """Each change of meaning shows in its own field; hosts, ports, places and concurrency in none."""
    found = []
    for text in (CONFIG, CONFIG.replace(old, new, 1)):
        config = load_config(write(tmp_path, text))
        found.append(fingerprint(config, load_rollouts(config)))
    assert {name for name in found[0] if found[0][name] != found[1][name]} == fields


def test_a_difference_is_refused_by_name_unless_it_is_accepted() -> None:
    """The message has both values and says how to go on; a field that only one side has differs as well."""
    check_same({"model": "a"}, {"model": "b"}, ["model"], "the output")
    with pytest.raises(
        ConfigError, match=r"model \(b then, a now\), size \(3 then, not there now\)\. .*--accept model"
    ):
        check_same({"model": "a"}, {"model": "b", "size": "3"}, [], "the output")
