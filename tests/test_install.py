"""`pi-mcp install` for hosts with a plugin folder: what is written, renewed, left alone and taken away."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pi_mcp import files
from pi_mcp.errors import PiMcpError
from pi_mcp.hosts.install import TARGETS, Wishes, apply, entries, survey, target_named
from pi_mcp.hosts.install.plan import Verb
from pi_mcp.hosts.install.surroundings import own_command, passing_place, surroundings
from tests.install_support import SECRET, Machine, pi_mcp
from tests.shim_support import ROOT

HOSTS = ("pi", "pp", "code-puppy", "gptme")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# What is written


@pytest.mark.parametrize("host", HOSTS)
def test_an_install_shows_everything_writes_it_and_has_nothing_to_do_the_second_time(
    machine: Machine, host: str
) -> None:
    plan = machine.plan("install", host)
    assert machine.files() == {}, "a plan writes nothing"
    apply([plan], machine.around)
    shown = {str(change.path) for change in plan.visible}
    assert shown == {str(machine.home / name) for name in machine.files()}
    assert plan.next_steps
    assert plan.undo == (f"pi-mcp uninstall {host}",)
    again = machine.plan("install", host)
    assert again.changes == ()
    assert "nothing to do" in again.text(set())


@pytest.mark.parametrize("host", HOSTS)
def test_an_uninstall_takes_away_exactly_what_was_written(machine: Machine, host: str) -> None:
    machine.write(machine.home / ".pi" / "agent" / "extensions" / "other.ts", "// mine\n")
    machine.write(machine.home / ".code_puppy" / "plugins" / "mine" / "register_callbacks.py", "")
    machine.write(machine.home / ".config" / "gptme" / "config.toml", f'# my file\n[env]\nTOKEN = "{SECRET}"\n')
    before = machine.files()
    machine.do("install", host)
    assert machine.files() != before
    machine.do("uninstall", host)
    assert machine.files() == before
    assert machine.plan("uninstall", host).changes == ()


def test_the_shim_is_told_how_to_start_this_very_engine(machine: Machine) -> None:
    machine.do("install", "pp")
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp"
    told = json.loads((folder / "pi_mcp_shim.json").read_text())
    assert told["command"] == ["/opt/pi-mcp/bin/pi-mcp", "engine"]
    assert (told["host"], told["version"]) == ("pp", "1.0")
    assert (folder / "__init__.py").read_text() == "# pp\n"
    assert (folder / "engine_client.py").exists()
    assert stat.S_IMODE((folder / "pi_mcp_shim.json").stat().st_mode) == 0o600


def test_pi_directory_of_the_environment_is_used(machine: Machine, tmp_path: Path) -> None:
    machine.environ["PI_CODING_AGENT_DIR"] = str(tmp_path / "elsewhere")
    machine.do("install", "pi")
    assert (tmp_path / "elsewhere" / "extensions" / "pi-mcp" / "index.ts").exists()
    assert machine.files() == {}


def test_code_puppy_keeps_its_plugins_below_the_home_whatever_xdg_says(machine: Machine) -> None:
    machine.environ["XDG_DATA_HOME"] = machine.environ["XDG_CONFIG_HOME"] = str(machine.root / "xdg")
    machine.do("install", "code-puppy")
    assert ".code_puppy/plugins/pi_mcp_code_puppy/register_callbacks.py" in machine.files()


def test_gptme_is_told_of_the_folder_and_its_list_of_allowed_plugins_gets_the_name(machine: Machine) -> None:
    path = machine.write(
        machine.home / ".config" / "gptme" / "config.toml",
        f'# keep\n[plugins]\nenabled = ["a"] # only these\n\n[env]\nTOKEN = "{SECRET}"\n',
    )
    plan = machine.do("install", "gptme")
    folder = machine.home / ".config" / "gptme" / "plugins" / "pi_mcp_gptme"
    assert path.read_text() == (
        f'# keep\n[plugins]\npaths = ["{folder}"]\nenabled = ["a", "pi_mcp_gptme"] # only these\n\n[env]\n'
        f'TOKEN = "{SECRET}"\n'
    )
    lines = [line for change in plan.visible for line in change.shown]
    assert f"+ plugins.paths: '{folder}'" in lines
    assert "+ plugins.enabled: 'pi_mcp_gptme'" in lines
    machine.do("uninstall", "gptme")
    assert path.read_text() == f'# keep\n[plugins]\nenabled = ["a"] # only these\n\n[env]\nTOKEN = "{SECRET}"\n'


def test_a_gptme_configuration_comes_back_byte_for_byte_in_every_layout(machine: Machine) -> None:
    path = machine.home / ".config" / "gptme" / "config.toml"
    bodies = ["", "# c", "a = 1", "[plugins]", "plugins = {paths = ['x']}", "[plugins]\nenabled = ['y']"]
    lists = ["[]", "[ ]", "[] # c", '["x"]', '["x",]', '[\n  "x"\n]', '[\n  "x", # c\n]\nenabled = ["y",]']
    bodies += [f"[plugins]\npaths = {one}" for one in lists]
    for body in bodies:
        for end in ("", "\n", "\n\n", "\r\n", "\n[env]\n# k\n", "\n\n[env]\na='x'"):
            machine.write(path, body + end)
            before = path.read_bytes()
            machine.do("install", "gptme")
            assert b"pi_mcp_gptme" in path.read_bytes()
            machine.do("uninstall", "gptme")
            assert path.read_bytes() == before
            assert list(machine.files()) == [".config/gptme/config.toml"]


def test_a_gptme_configuration_that_does_not_parse_stops_everything(machine: Machine) -> None:
    path = machine.write(machine.home / ".config" / "gptme" / "config.toml", f'a = 1\nb = "{SECRET}" c\n')
    plan = machine.do("install", "gptme")
    assert plan.problem is not None
    assert "config.toml, line 2, column" in plan.problem.message
    assert list(machine.files()) == [".config/gptme/config.toml"]
    assert path.read_text() == f'a = 1\nb = "{SECRET}" c\n'


def test_pydantic_ai_is_told_what_to_write_and_nothing_is_written(machine: Machine) -> None:
    plan = machine.do("install", "pydantic-ai")
    assert plan.changes == ()
    assert any("PiMcpToolset()" in line for line in plan.next_steps)


def test_pi_hears_what_becomes_of_its_own_mcp_support(machine: Machine) -> None:
    servers = {"mcpServers": {"tickets": {"env": {"T": SECRET}}, "we\x1b[31mird": {}}}
    machine.write(machine.cwd / ".pi" / "mcp.json", json.dumps(servers))
    machine.write(machine.home / ".pi" / "agent" / "mcp-auth.json", json.dumps({"token": SECRET}))
    packages = ["npm:other", {"source": "npm:pi-mcp-adapter@2.0"}, 3]
    machine.write(machine.home / ".pi" / "agent" / "settings.json", json.dumps({"packages": packages, "key": SECRET}))
    said = machine.plan("install", "pi").text(set())
    assert "takes the place of Pi's built-in MCP support" in said
    assert ".pi/mcp.json of this folder is not read by pi-mcp; it has tickets, " in said
    assert "\x1b" not in said
    assert "logins of `pi mcp` stay with Pi" in said
    assert "`pi remove npm:pi-mcp-adapter@2.0` before" in said
    assert "npm:other" not in said
    assert "/mcp auth" in machine.plan("install", "pi").afterwards


@pytest.mark.parametrize("text", ["{", "[]", '{"packages": {"a": 1}, "mcpServers": ["x"]}', '{"packages": null}'])
def test_odd_files_of_pi_stop_nothing(machine: Machine, text: str) -> None:
    machine.write(machine.home / ".pi" / "agent" / "settings.json", text)
    machine.write(machine.cwd / ".pi" / "mcp.json", text)
    assert machine.do("install", "pi").problem is None


# What is there already


def test_an_upgrade_renews_what_changed_and_removes_what_is_no_longer_needed(machine: Machine) -> None:
    machine.do("install", "pi")
    later = machine.newer("2.0", pi__index_ts="// index 2\n// more\n")
    (later.shims / "pi" / "engine.ts").rename(later.shims / "pi" / "client.ts")
    assert target_named("pi").installed(later.around).state == "outdated"
    plan = later.do("install", "pi")
    assert {(change.path.name, change.action) for change in plan.visible} == {
        ("index.ts", "change"),
        ("client.ts", "create"),
        ("engine.ts", "remove"),
        ("pi_mcp_shim.json", "change"),
    }
    assert ("+2 -1 lines",) in [change.shown for change in plan.visible]
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi-mcp"
    assert sorted(path.name for path in folder.iterdir()) == [
        "client.ts",
        "index.ts",
        "package.json",
        "pi_mcp_shim.json",
    ]
    assert target_named("pi").installed(later.around).state == "current"
    later.do("uninstall", "pi")
    assert machine.files() == {}


def test_a_pi_mcp_that_moved_is_written_into_the_shim(machine: Machine) -> None:
    machine.do("install", "pp")
    machine.command = ("/new/python", "-m", "pi_mcp")
    plan = machine.do("install", "pp")
    assert [change.path.name for change in plan.visible] == ["pi_mcp_shim.json"]
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp"
    assert json.loads((folder / "pi_mcp_shim.json").read_text())["command"] == ["/new/python", "-m", "pi_mcp", "engine"]


@pytest.mark.parametrize("name", ["__init__.py", "engine_client.py", "pi_mcp_shim.json"])
def test_a_file_that_the_person_changed_is_named_and_neither_renewed_nor_removed(machine: Machine, name: str) -> None:
    machine.do("install", "pp")
    path = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp" / name
    mine = path.read_text().replace("# ", f"# mine {SECRET} ").replace("engine", "Engine")
    path.write_text(mine)
    before = machine.files()
    for verb in ("install", "uninstall") if name == "pi_mcp_shim.json" else ("install",):
        plan = machine.newer("2.0", pp_py="# pp 2\n").do(verb, "pp")
        assert plan.problem is not None
        assert str(path) in plan.problem.message
        assert "changed by hand" in plan.problem.message
        assert machine.files() == before
    assert target_named("pp").installed(machine.around).state == "changed"
    plan = machine.do("uninstall", "pp")
    assert path.read_text() == mine
    if name != "pi_mcp_shim.json":
        assert str(path) in plan.text(set())
        path.unlink()
        machine.do("uninstall", "pp")
        assert machine.files() == {}


@pytest.mark.parametrize("host", HOSTS)
def test_a_foreign_file_at_our_place_is_never_overwritten_or_removed(machine: Machine, host: str) -> None:
    plan = machine.plan("install", host)
    foreign = next(change.path for change in plan.visible if change.path.suffix in (".ts", ".py"))
    machine.write(foreign, "somebody else's\n")
    before = machine.files()
    plan = machine.do("install", host)
    assert plan.problem is not None
    assert f"{foreign} is not from pi-mcp" in plan.problem.message
    assert machine.do("uninstall", host).changes == ()
    assert machine.files() == before


@pytest.mark.parametrize("what", ["file", "folder", "dangling"])
def test_a_link_at_our_place_is_not_followed(machine: Machine, what: str) -> None:
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi-mcp"
    target = machine.root / "target"
    if what == "folder":
        target.mkdir()
    elif what == "file":
        target.write_text("mine")
    folder.parent.mkdir(parents=True)
    if what == "folder":
        folder.symlink_to(target)
    else:
        folder.mkdir()
        (folder / "index.ts").symlink_to(target)
    plan = machine.do("install", "pi")
    assert plan.problem is not None
    assert what != "folder" or list(target.iterdir()) == []
    assert what != "file" or target.read_text() == "mine"


def test_a_home_that_is_kept_elsewhere_by_a_link_is_fine(machine: Machine) -> None:
    dotfiles = machine.root / "dotfiles" / "pi"
    dotfiles.mkdir(parents=True)
    (machine.home / ".pi").symlink_to(dotfiles)
    assert machine.do("install", "pi").problem is None
    assert (dotfiles / "agent" / "extensions" / "pi-mcp" / "index.ts").exists()
    machine.do("uninstall", "pi")
    assert (machine.home / ".pi").is_symlink()
    assert [path for path in dotfiles.rglob("*") if path.is_file()] == []


def test_what_the_hosts_python_compiled_goes_with_its_source(machine: Machine) -> None:
    machine.do("install", "pp")
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp"
    machine.write(folder / "__pycache__" / "engine_client.cpython-311.pyc", "x")
    machine.do("uninstall", "pp")
    assert not folder.exists()


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../victim", "a/../../victim"])
def test_a_record_that_names_files_outside_its_folder_removes_none(machine: Machine, name: str) -> None:
    machine.do("install", "pp")
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp"
    victim = machine.write(machine.home / ".pi" / "victim", "x")
    sums = {name: hashlib.sha256(b"x").hexdigest()}
    (folder / "pi_mcp_shim.json").write_text(json.dumps({"host": "pp", "version": "1", "files": sums}))
    machine.do("uninstall", "pp")
    assert victim.exists()


def test_a_record_that_names_files_behind_a_link_removes_none(machine: Machine) -> None:
    machine.do("install", "pp")
    folder = machine.home / ".pi" / "agent" / "extensions" / "pi_mcp_pp"
    victim = machine.write(machine.home / "elsewhere" / "victim.py", "x")
    (folder / "inner").symlink_to(victim.parent)
    sums = {"inner/victim.py": hashlib.sha256(b"x").hexdigest()}
    (folder / "pi_mcp_shim.json").write_text(json.dumps({"host": "pp", "version": "1", "files": sums}))
    for verb in ("uninstall", "install"):
        assert machine.do(verb, "pp").problem is not None
        assert victim.exists()


# Breaks, races, and machines that do not let us


@pytest.mark.parametrize("host", HOSTS)
def test_a_break_between_any_two_writes_is_mended_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    write, remove = files.write_config, files.remove
    for stop in range(1, 12):
        (tmp_path / str(stop)).mkdir()
        machine = Machine(tmp_path / str(stop))
        machine.do("install", host)
        later = machine.newer("2.0", gptme_py="# 2\n", pp_py="# 2\n", code_puppy_py="# 2\n", pi__index_ts="// 2\n")
        later.write(later.shims / "engine_client.py", "# engine 2\n")
        later.write(later.shims / "pi" / "engine.ts", "// engine 2\n")
        for verb in ("install", "uninstall"):
            left = [stop]

            def counted(path: Path, data: bytes | None = None, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                write(path, data) if data is not None else remove(path)

            monkeypatch.setattr(files, "write_config", counted)
            monkeypatch.setattr(files, "remove", counted)
            with contextlib.suppress(KeyboardInterrupt):
                later.do(verb, host)
            monkeypatch.setattr(files, "write_config", write)
            monkeypatch.setattr(files, "remove", remove)
            # Between the two runs comes an even later version.
            even = later.newer("3.0", gptme_py="# 3\n") if verb == "install" else later
            assert even.do(verb, host).problem is None
            if verb == "install":
                assert even.plan("install", host).changes == ()
            else:
                assert machine.files() == {}
            later = even


def test_a_file_that_changed_after_the_preview_stops_everything_before_the_first_write(machine: Machine) -> None:
    plan = machine.plan("install", "pp")
    other = machine.write(plan.visible[1].path, "meanwhile\n")
    with pytest.raises(PiMcpError) as caught:
        apply([plan], machine.around)
    assert caught.value.diagnostic.code == "busy"
    assert machine.files() == {str(other.relative_to(machine.home)): "meanwhile\n"}


@pytest.mark.parametrize("verb", ["install", "uninstall"])
@pytest.mark.parametrize("before", [True, False], ids=["again", "first"])
def test_a_plan_that_another_run_wrote_into_is_made_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, verb: Verb, before: bool
) -> None:
    """The configuration as it was before the other run, and the record and the folders as they were after it."""
    if before:
        machine.do("install", "claude-code")
    if verb == "uninstall":
        machine.do("install", "codex")
    look, reads = entries.text_of, 0

    def text_of(path: Path, follow: bool = False) -> tuple[str, Path]:
        nonlocal reads
        seen = look(path, follow=follow)
        reads += 1
        if reads == 1:
            machine.do(verb, "codex")
        return seen

    monkeypatch.setattr(entries, "text_of", text_of)
    plan = machine.plan(verb, "codex")
    assert reads > 1
    assert (plan.problem, plan.changes, plan.kept) == (None, (), ())
    assert plan.text(set()).splitlines()[1:2] == ["  There is nothing to do."]


def test_a_plan_waits_for_a_run_that_writes_and_shows_what_that_one_left(machine: Machine) -> None:
    config = machine.home / ".codex" / "config.toml"
    machine.do("install", "codex")
    held, plans = threading.Event(), []
    with files.locked(machine.state / "locks" / "install.lock"):

        def look() -> None:
            held.set()
            plans.append(machine.plan("install", "codex"))

        thread = threading.Thread(target=look)
        thread.start()
        held.wait(30)
        thread.join(0.3)
        assert thread.is_alive(), "the other run has not ended"
        config.unlink()
        os.utime(machine.state / "locks" / "install.lock")
    thread.join(30)
    assert [change.action for change in plans[0].visible] == ["create"]


def test_many_installs_at_once_all_end_well(private_home: Path) -> None:
    words = [sys.executable, "-m", "pi_mcp", "install", "pi", "claude-code", "codex", "--yes"]
    root = Path(__file__).resolve().parent.parent
    running = [
        subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
    assert [code for _, code in ends] == [0] * 4, ends
    done = pi_mcp("install", "pi", "claude-code", "codex")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("There is nothing to do.") == 3


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_read_only_is_named(machine: Machine) -> None:
    (machine.home / ".pi").mkdir(mode=0o500)
    with pytest.raises(PiMcpError) as caught:
        machine.do("install", "pi")
    assert caught.value.diagnostic.code == "configuration_invalid"


def test_a_place_that_cannot_be_written_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "write_config", refuse)
    with pytest.raises(PiMcpError) as caught:
        machine.do("install", "pi")
    assert caught.value.diagnostic.code == "configuration_invalid"
    assert "pi_mcp_shim.json cannot be written" in caught.value.diagnostic.message
    assert "read-only" in str(caught.value)


def test_a_missing_home_is_an_error_that_says_so() -> None:
    done = pi_mcp("install", "pi", "--yes", HOME="/does/not/exist")
    assert done.returncode == 2
    assert "HOME names none" in done.stderr


def test_an_empty_home_means_the_one_of_the_password_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        monkeypatch.setenv("USERPROFILE", "")
        assert surroundings().home == Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_a_pi_mcp_without_its_shims_says_so(machine: Machine) -> None:
    (machine.shims / "pp.py").unlink()
    plan = machine.do("install", "pp")
    assert plan.problem is not None
    assert "pp.py is missing" in plan.problem.message
    assert machine.files() == {}


# How this pi-mcp is started


def test_the_script_beside_this_python_is_preferred_and_python_itself_is_the_way_out(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert own_command(str(python)) == (str(python), "-P", "-m", "pi_mcp")
    script = tmp_path / "bin" / "pi-mcp"
    script.write_text("")
    script.chmod(0o755)
    assert own_command(str(python)) == (str(script),)


def test_the_folder_that_a_host_is_started_in_brings_no_module(tmp_path: Path) -> None:
    (tmp_path / "pi_mcp").mkdir()
    for name in ("pi_mcp/__init__.py", "pi_mcp/__main__.py", "json.py"):
        (tmp_path / name).write_text("print('taken from the project')")
    _, *words = own_command(str(tmp_path / "python"))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words, "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "taken" not in done.stdout


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("/home/me/.cache/uv/archive-v0/Ab3/bin/pi-mcp", "uvx"),
        ("/elsewhere/cache/environments-v2/pi-mcp-1/bin/python", "uvx"),
        ("/custom/uv-cache/x/bin/pi-mcp", "uvx"),
        ("/home/me/.local/share/pipx/.cache/1a2b/bin/pi-mcp", "pipx run"),
        ("/tmp/venv/bin/pi-mcp", "temporary"),
        ("/home/me/.local/share/uv/tools/pi-mcp/bin/pi-mcp", None),
        ("/home/me/.local/share/pipx/venvs/pi-mcp/bin/pi-mcp", None),
        ("/usr/bin/pi-mcp", None),
    ],
)
def test_a_program_that_will_be_cleaned_away_is_warned_of(program: str, word: str | None) -> None:
    said = passing_place((program, "-m", "pi_mcp"), {"UV_CACHE_DIR": "/custom/uv-cache"})
    assert (said is None) == (word is None)
    assert word is None or word in str(said)


# The commands


def test_without_a_terminal_and_without_yes_nothing_is_written(private_home: Path) -> None:
    done = pi_mcp("install", "pi")
    assert done.returncode == 7
    assert "create " in done.stdout
    assert done.stderr.startswith("[refused] Nothing was written: there is nobody to ask.")
    assert [path for path in private_home.rglob("*") if path.is_file()] == []


def test_with_json_the_preview_and_the_outcome_are_one_document(private_home: Path) -> None:
    done = pi_mcp("install", "pi", "pydantic-ai", "--json")
    assert done.returncode == 7
    told = json.loads(done.stdout)
    assert told["error"]["code"] == "refused"
    assert [row["written"] for row in told["hosts"]] == [False, False]
    assert {change["action"] for change in told["hosts"][0]["changes"]} == {"create"}
    done = pi_mcp("install", "pi", "--json", "--yes")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert "error" not in told
    assert told["hosts"][0]["written"] is True
    assert told["hosts"][0]["undo"] == ["pi-mcp uninstall pi"]
    done = pi_mcp("install", "pi", "--json")
    assert (done.returncode, json.loads(done.stdout)["hosts"][0]["changes"]) == (0, [])


def test_an_unknown_host_is_a_usage_error_that_names_the_known_ones() -> None:
    done = pi_mcp("install", "emacs\x1b[31m")
    assert done.returncode == 2
    assert all(target.name in done.stderr for target in TARGETS)
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("words", [("--url", "http://127.0.0.1:1/mcp"), ("--project",), ("--token-env", "K")])
def test_what_is_for_clients_is_refused_for_a_host(words: tuple[str, ...]) -> None:
    done = pi_mcp("install", "pi", "--yes", *words)
    assert done.returncode == 2
    assert "for clients of the gateway" in done.stderr


def test_one_host_that_cannot_be_installed_does_not_stop_the_others(private_home: Path) -> None:
    path = private_home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(f'x = "{SECRET}" y')
    done = pi_mcp("install", "codex", "pi", "--yes")
    assert done.returncode == 2
    assert "config.toml, line 1, column" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert (private_home / ".pi" / "agent" / "extensions" / "pi-mcp" / "index.ts").exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 7), ("", 7)])
def test_on_a_terminal_the_person_is_asked(private_home: Path, answer: str, code: int) -> None:
    import pty

    leader, follower = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pi_mcp", "install", "pi"],
        env=environ,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    said = b""
    try:
        while b"[y/N]" not in said:
            said += os.read(leader, 4096)
        os.write(leader, answer.encode() + b"\n")
        assert process.wait(timeout=60) == code
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert b"create" in said
    written = [path for path in private_home.rglob("*") if path.is_file() and "extensions" in path.parts]
    assert bool(written) == (code == 0)


def test_hosts_shows_what_is_here_and_what_has_pi_mcp(private_home: Path, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, words in {"zed": "echo Zed 0.220.3", "code": "sleep 100 & echo 1.99.0 abc", "cursor": "exit 3"}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{words}\n")
        (bin_folder / name).chmod(0o755)
    package = tmp_path / "node_modules" / "@earendil-works" / "pi-coding-agent"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@earendil-works/pi-coding-agent", "version": "1.6.0"}')
    (package / "dist" / "cli.js").write_text("")
    (package / "dist" / "cli.js").chmod(0o755)
    (bin_folder / "pi").symlink_to(package / "dist" / "cli.js")
    # Two programs that are called like hosts and are none: neither is started.
    (bin_folder / "pp").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (bin_folder / "pp").chmod(0o755)
    path = f"{bin_folder}{os.pathsep}/usr/bin{os.pathsep}/bin"
    assert pi_mcp("install", "pi", "--yes", PATH=path).returncode == 0
    done = pi_mcp("hosts", "--json", PATH=path)
    assert done.returncode == 0, done.stderr
    rows = {row["host"]: row for row in json.loads(done.stdout)["hosts"]}
    assert list(rows) == [target.name for target in TARGETS]
    assert (rows["pi"]["found"], rows["pi"]["version"]) == (True, "1.6.0")
    assert (rows["pi"]["installed"], rows["pi"]["kind"]) == ("current", "host")
    assert rows["pp"]["found"] is False
    assert not (tmp_path / "started").exists()
    assert (rows["zed"]["version"], rows["code-puppy"]["found"]) == ("0.220.3", False)
    assert (rows["vscode"]["found"], rows["vscode"]["version"]) == (True, "1.99.0")
    assert (rows["cursor"]["found"], rows["cursor"]["version"]) == (True, None)
    table = pi_mcp("hosts", PATH=path).stdout
    assert "pi              1.6.0" in table


def test_a_place_that_cannot_be_looked_into_is_named_and_stops_no_other(private_home: Path) -> None:
    # Whoever runs the tests: a name that no file system takes fails for root, too.
    nowhere = f"/{'x' * 300}"
    places = {"PI_CODING_AGENT_DIR": nowhere, "CODEX_HOME": nowhere}
    done = pi_mcp("install", "pi", "codex", "gptme", "--yes", "--json", **places)
    assert done.returncode == 2, done.stderr
    rows = {row["host"]: row for row in json.loads(done.stdout)["hosts"]}
    for name in ("pi", "codex"):
        assert rows[name]["error"]["code"] == "configuration_invalid"
        assert nowhere in rows[name]["error"]["message"]
    assert rows["gptme"]["written"] is True
    done = pi_mcp("hosts", "--json", **places)
    assert done.returncode == 0, done.stderr
    states = {row["host"]: row["installed"] for row in json.loads(done.stdout)["hosts"]}
    assert (states["pi"], states["codex"], states["gptme"]) == ("changed", "changed", "current")


def test_where_there_is_nothing_to_do_nothing_is_written(private_home: Path) -> None:
    before = sorted(private_home.rglob("*"))
    assert pi_mcp("install", "pydantic-ai").returncode == 0
    assert pi_mcp("uninstall", "pi", "gptme", "codex").returncode == 0
    assert sorted(private_home.rglob("*")) == before


def test_a_program_that_does_not_answer_is_not_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from pi_mcp.hosts.install import found

    monkeypatch.setattr(found, "LIMIT", 0.3)
    program = machine.write(machine.root / "bin" / "zed", "#!/bin/sh\nsleep 1000\n")
    program.chmod(0o755)
    machine.environ["PATH"] = f"{program.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    row = next(found for target, found, _ in survey(machine.around) if target.name == "zed")
    assert (row.present, row.version) == (True, None)


def test_this_process_has_surroundings(private_home: Path) -> None:
    around = surroundings()
    assert around.home == private_home
    assert (around.shims / "engine_client.py").exists()
    assert target_named("pi").install(around, Wishes()).problem is None


def test_a_failure_is_said_once_on_standard_error(machine: Machine) -> None:
    for words in (("--url", "http://127.0.0.1:8400/mcp", "--yes"), ("--url", "http://127.0.0.1:8400/mcp")):
        done = pi_mcp("install", "claude-desktop", *words, HOME=str(machine.home))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("takes no addresses") == 1
        assert done.stderr.count("\n") == 1
    both = pi_mcp("install", "claude-desktop", "codex", "--url", "http://127.0.0.1:8400/mcp", HOME=str(machine.home))
    assert "Codex" in both.stdout
    assert "takes no addresses" not in both.stdout
    assert both.stderr.count("takes no addresses") == 1
