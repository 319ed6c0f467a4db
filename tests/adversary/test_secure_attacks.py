"""A hostile coordinator, owner or stranger against secure aggregation, with real owners.

What an attacker is after is one owner's update. Every attack is either refused, or leaves a guess that is no better than
chance; and the difference of two sums, were they opened, is shown to be the update, so the measure would tell.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from folders import QUICK, Desks
from hostile import OWNERS, STEP, Hostile, desks_in, likeness, planned, true_update, words_of, write_shards
from identities import Authority, kit_of

from suture.core.storage import sha256_of_json
from suture.errors import ConfigError, IntegrityError
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.coordinator.secure import judged
from suture.federation.identity import Identity
from suture.federation.owner.opened import OPENED, Answered, OpenedSums
from suture.federation.owner.owner import Owner
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import FaultSettings, order_of
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.sealed import Sealed
from suture.federation.wire.transcript import Advertised, Purpose, keys_statement
from suture.privacy.secure_aggregation import Member, decode

VICTIM = OWNERS[2]
OTHERS = [owner for owner in OWNERS if owner != VICTIM]
CHANCE = 0.12
"""About four standard deviations of the correlation of a thousand and some random pairs; the tests below say how many."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def truth(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    update = true_update(tmp_path_factory.mktemp("plain"), shards, VICTIM)
    assert 4 / np.sqrt(update.size) < CHANCE
    return update


@pytest.fixture
def hostile(shards: Path, tmp_path: Path) -> Hostile:
    made = Hostile(desks_in(tmp_path / "owners", shards))
    assert not any(frame.refused for frame in made.open_run().values())
    return made


def refusal(frame: Frame) -> str:
    assert frame.refused is not None, frame.header
    assert not frame.body and not {"shares", "opened", "signature"} & set(frame.header)
    return str(frame.refused)


# A sum is opened once


def test_two_sums_would_give_the_update_away(hostile: Hostile, truth: np.ndarray) -> None:
    """What the record of opened sums is for: owners that forget it give the victim's update to nine digits."""
    whole = hostile.sum()
    for owner in OWNERS:
        (hostile.parties.owned[owner].home / OPENED).unlink()
        hostile.parties.desks[owner] = hostile.parties.owned[owner].desk()
    hostile.open_run(number=1)
    less = hostile.sum(OWNERS, OTHERS)
    assert whole is not None and less is not None
    np.testing.assert_allclose(whole - less, truth, atol=1e-8)


def test_the_same_sum_is_not_opened_for_others(hostile: Hostile, truth: np.ndarray) -> None:
    words = hostile.sealed()
    signed = hostile.signatures(OWNERS)
    assert hostile.opened(words, OWNERS, {owner: hostile.open(owner, signed) for owner in OWNERS}) is not None
    for owner in OTHERS:
        assert "it was another one" in refusal(hostile.agree(owner, OTHERS))
        assert "it was another one" in refusal(hostile.open(owner, {name: signed[name] for name in OTHERS}))
    assert likeness(decode(words_of(words[VICTIM])), truth) < CHANCE


def test_another_number_opens_nothing(hostile: Hostile) -> None:
    """The sum is asked under number 1; it is not opened under another."""
    hostile.sealed()
    signed = hostile.signatures(OWNERS)
    for number in (0, 2, 7):
        hostile.number = number
        for owner in OWNERS:
            assert "no secure sum has been begun here" in refusal(hostile.open(owner, signed))
            assert "no secure sum has been begun here" in refusal(hostile.agree(owner, OTHERS))


def reborn(hostile: Hostile) -> None:
    for owner in OWNERS:
        hostile.parties.desks[owner] = hostile.parties.owned[owner].desk()
    hostile.open_run(number=1)


def same_number(hostile: Hostile) -> None:
    pass


def from_the_start(hostile: Hostile) -> None:
    hostile.open_run(number=0)


def another_run(hostile: Hostile) -> None:
    hostile.run = "second"
    hostile.open_run()


def another_step(hostile: Hostile) -> None:
    hostile.number = 2


def another_round(hostile: Hostile) -> None:
    hostile.number, hostile.round = 2, 2


AGAIN: list[Callable[[Hostile], None]] = [reborn, same_number, from_the_start, another_run, another_step, another_round]


@pytest.mark.parametrize("change", AGAIN)
@pytest.mark.parametrize("members", [OWNERS, OTHERS], ids=["said to be lost", "not asked"])
def test_a_step_is_not_opened_again_for_others(
    change: Callable[[Hostile], None], members: list[str], hostile: Hostile, truth: np.ndarray
) -> None:
    """In a new session, at a new process, in a second run with the same seed: always the same updates, so never again."""
    assert hostile.sum() is not None
    change(hostile)
    if members is OTHERS:
        shares = hostile.shares(hostile.keys(members))
        for owner in members:
            assert "opened for other survivors" in refusal(hostile.ask(owner, shares))
        return
    words = hostile.sealed(members)
    for owner in OTHERS:
        assert "opened for other survivors" in refusal(hostile.agree(owner, OTHERS))
        refusal(hostile.open(owner, {}))
    for owner in members:
        assert likeness(decode(words_of(words[owner])), truth) < CHANCE


def test_who_has_opened_a_step_is_in_no_sum_that_others_open(hostile: Hostile) -> None:
    """Three of five open; the other two have opened nothing yet, and could open a sum with one of the three in it."""
    hostile.sealed()
    signed = hostile.signatures(OWNERS)
    openers, rest = OWNERS[:3], OWNERS[3:]
    assert all("opened" in hostile.open(owner, signed).header for owner in openers)
    told = hostile.shares(hostile.keys([openers[0], *rest]))
    assert "opened for other survivors" in refusal(hostile.ask(openers[0], told))
    assert all(hostile.ask(owner, told).refused is None for owner in rest)


def test_the_same_sum_may_be_asked_for_again(hostile: Hostile) -> None:
    """A coordinator that was killed before it wrote the sum down gets the same one, and learns nothing new."""
    first = hostile.sum()
    reborn(hostile)
    again = hostile.sum()
    assert first is not None and again is not None
    np.testing.assert_array_equal(first, again)
    lines = (hostile.parties.owned[VICTIM].home / OPENED).read_text().splitlines()
    assert len([line for line in lines if '"survivors"' in line]) == 1


def test_another_content_is_no_reason_to_open_a_step_again(hostile: Hostile) -> None:
    assert hostile.sum() is not None
    shares = hostile.shares(hostile.keys())
    for owner in OWNERS:
        assert "opened for another content" in refusal(hostile.ask(owner, shares, scale=1.001))


def test_what_was_opened_is_on_disk_before_it_is_told_and_known_to_other_processes(tmp_path: Path) -> None:
    """Many at once, on two records of the same file: exactly one set of survivors wins."""
    records = [OpenedSums(tmp_path), OpenedSums(tmp_path)]
    won: list[list[str]] = []

    def attempt(record: OpenedSums, survivors: list[str]) -> None:
        try:
            record.open("run", 1, Answered("content"), survivors)
            won.append(survivors)
        except Refused as error:
            assert error.code == Code.SECRECY

    threads = [threading.Thread(target=attempt, args=(records[k % 2], [*OWNERS[: 3 + k % 2]])) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won and all(one == won[0] for one in won)
    assert [json.loads(line)["survivors"] for line in (tmp_path / OPENED).read_text().splitlines()] == [sorted(won[0])]
    for record in (*records, OpenedSums(tmp_path)):
        with pytest.raises(Refused, match="other survivors"):
            record.open("run", 1, Answered("content"), ["client-01"])
        with pytest.raises(Refused, match="other survivors in step 1 of run"):
            record.check("other", 4, Answered("content"), ["client-01"])


# Who is in it


def test_nobody_joins_whom_the_terms_do_not_name(hostile: Hostile, tmp_path: Path) -> None:
    """Invented owners, even with a certificate of the federation; and terms that were changed are other terms."""
    invented = Identity.of_kit(kit_of("mallory"))
    keys = {**hostile.keys(), "mallory": advertised(hostile, "mallory", invented)}
    for frame in hostile.shares(keys, OWNERS).values():
        assert "mallory is none of the owners that the terms name" in refusal(frame)
    # Terms that name other owners at one owner alone are other terms: no key signed under the one counts under the other.
    hostile.run = "other"
    hostile.open_run(OTHERS)
    hostile.open_run([VICTIM], owners=[*OWNERS, "mallory"])
    frame = hostile.shares(hostile.keys(), [VICTIM])[VICTIM]
    assert set(OTHERS) <= set(frame.header["accused"]) and "shares" not in frame.header  # type: ignore[arg-type]


def advertised(
    hostile: Hostile, name: str, identity: Identity | None, number: int = 1, purpose: str | None = None
) -> object:
    """Keys that the coordinator has made itself, in this owner's name."""
    keys = Member(name).public()
    about = Purpose(purpose or hostile.run, sha256_of_json(hostile.terms.as_json()), number)
    signature = identity.sign(keys_statement(about, name, keys)) if identity else b""
    return Advertised(keys, signature, identity.pem if identity else "").as_json()


def forged(kind: str, hostile: Hostile, folder: Path) -> object:
    """Keys of OWNERS[1] that only the coordinator has the secrets of, or that do not count."""
    name, other = OWNERS[1], Authority("elsewhere")
    if kind == "its own keys under the owner's signature":
        true = hostile.tell(name, "seal-keys").header["keys"]
        return [*advertised(hostile, name, None)[:3], *true[3:]]  # type: ignore[index]
    if kind == "unsigned":
        return [*advertised(hostile, name, None)[:4], Identity.of_kit(kit_of(name)).pem]  # type: ignore[index]
    if kind == "signed by another owner":
        return advertised(hostile, name, Identity.of_kit(kit_of(OWNERS[3])))
    if kind == "signed by another owner, under the right certificate":
        made = advertised(hostile, name, Identity.of_kit(kit_of(OWNERS[3])))
        return [*made[:4], Identity.of_kit(kit_of(name)).pem]  # type: ignore[index]
    if kind == "another federation's authority":
        return advertised(hostile, name, Identity.of_kit(other.kit(folder / "kit", name)))
    if kind == "another federation of the same name":
        return advertised(hostile, name, Identity.of_kit(Authority("trial").kit(folder / "kit", name)))
    if kind == "of another step":
        return advertised(hostile, name, Identity.of_kit(kit_of(name)), number=2)
    if kind == "of another run":
        return advertised(hostile, name, Identity.of_kit(kit_of(name)), purpose="other")
    if kind == "a point that agrees with everybody":
        return ["00" * 32, *advertised(hostile, name, Identity.of_kit(kit_of(name)))[1:]]  # type: ignore[index]
    return {"no list": {}, "nothing": None, "not hex": ["zz"] * 5, "deep": [[[]]] * 5}[kind]


FORGED = [
    "its own keys under the owner's signature",
    "unsigned",
    "signed by another owner",
    "signed by another owner, under the right certificate",
    "another federation's authority",
    "another federation of the same name",
    "of another step",
    "of another run",
    "a point that agrees with everybody",
    "no list",
    "nothing",
    "not hex",
    "deep",
]


@pytest.mark.parametrize("kind", FORGED)
def test_keys_that_are_not_the_owners_own_are_not_used(kind: str, hostile: Hostile, tmp_path: Path) -> None:
    """A coordinator that could replace keys would sit between owners and read their shares."""
    keys = {**hostile.keys(), OWNERS[1]: forged(kind, hostile, tmp_path)}
    frame = hostile.shares(keys, [VICTIM])[VICTIM]
    assert list(frame.header["accused"]) == [OWNERS[1]] and set(frame.header) == {"accused", "answers"}  # type: ignore[call-overload]
    noted = read_audit(hostile.parties.owned[VICTIM].home / AUDIT)[-1]
    assert (noted["event"], noted["owner"]) == ("accused", OWNERS[1])
    refusal(hostile.tell(VICTIM, "seal-ask", hostile.body(VICTIM), session=hostile.session, step=STEP, round=1, base=0))


def test_an_owner_knows_its_own_keys(hostile: Hostile) -> None:
    """It has signed others for the same step before; who has these in their place gets nothing."""
    earlier = hostile.tell(VICTIM, "seal-keys").header["keys"]
    keys = {**hostile.keys(), VICTIM: earlier}
    refused = hostile.shares(keys, [VICTIM])[VICTIM].refused
    assert "the keys that came as this owner's are not its own" in str(refused)


def test_another_session_is_another_sum(hostile: Hostile) -> None:
    hostile.sealed()
    hostile.session = "0" * 32
    assert "not the secure sum this owner has begun" in str(hostile.agree(VICTIM, OWNERS).refused)


@pytest.mark.parametrize("kind", ["revoked", "expired", "operator", "coordinator", "no role"])
def test_certificates_that_do_not_count(kind: str, shards: Path, tmp_path: Path) -> None:
    """Keys that the owner has itself signed, under a certificate that is not, or not any more, an owner's."""
    authority, name = Authority(), OWNERS[1]
    kits = {owner: authority.kit(tmp_path / "kits" / owner, owner) for owner in OWNERS}
    if kind == "revoked":
        authority.revoke(kits[name], kits[VICTIM])
    elif kind == "expired":
        authority.kit(kits[name], name, after=-timedelta(seconds=5))
    else:
        authority.kit(kits[name], name, role=None if kind == "no role" else kind)
    parties = desks_in(tmp_path / "owners", shards)
    for owner, path in kits.items():
        one = parties.owned[owner]
        parties.owned[owner] = Owner.set_up(owner, one.data, None, one.home, kit=path)
        parties.desks[owner] = parties.owned[owner].desk()
    made = Hostile(parties)
    made.open_run()
    keys = made.keys()
    frame = made.shares(keys, [VICTIM])[VICTIM]
    expected = {"revoked": "is revoked", "expired": "not valid now"}.get(kind, "not that of an owner")
    assert expected in frame.header["accused"][name] and set(frame.header) == {"accused", "answers"}  # type: ignore[index, call-overload]


def test_kits_as_flare_makes_them(tmp_path: Path) -> None:
    """RSA, no role in the certificate: an owner's is known by the kit's list, so a coordinator's is none."""
    authority = Authority()
    kits = {}
    for name in ("a", "b", "localhost"):
        key = rsa.generate_private_key(65537, 2048) if name != "b" else ec.generate_private_key(ec.SECP256R1())
        kits[name] = authority.kit(tmp_path / name, name, key, role=None)
        (kits[name] / "about.json").write_text(json.dumps({"owners": ["a", "b"]}))
    parties = {name: Identity.of_kit(kit) for name, kit in kits.items()}
    parties["b"].verify("a", parties["a"].pem, b"this", parties["a"].sign(b"this"))
    parties["a"].verify("b", parties["b"].pem, b"this", parties["b"].sign(b"this"))
    for name, signer, data in (("a", "a", b"that"), ("a", "b", b"this"), ("localhost", "localhost", b"this")):
        with pytest.raises(IntegrityError):
            parties["a"].verify(name, parties[signer].pem, data, parties[signer].sign(b"this"))
    (kits["a"] / "startup" / "client.key").write_bytes((kits["b"] / "startup" / "client.key").read_bytes())
    with pytest.raises(IntegrityError, match="is not the key of"):
        Identity.of_kit(kits["a"])
    Authority("elsewhere").revoke(kits["b"], kits["b"])
    with pytest.raises(IntegrityError, match="not signed by this federation"):
        Identity.of_kit(kits["b"])


# What was told to whom


def test_different_survivors_for_different_owners(hostile: Hostile, truth: np.ndarray) -> None:
    """The victim is told that all survived, the others that it was lost: both of its secrets would come together."""
    words = hostile.sealed()
    signed = {owner: hostile.agree(owner, OTHERS[:3]).header.get("signature") for owner in OTHERS[:2]}
    signed |= {owner: hostile.agree(owner, OWNERS).header.get("signature") for owner in (VICTIM, *OTHERS[2:])}
    assert all(signed.values())
    # Three of five must have signed the same: those that were told OWNERS are enough, and open that and nothing else.
    told = {owner: hostile.open(owner, signed) for owner in OWNERS}
    for owner in OTHERS[:2]:
        assert "2 owners have signed" in refusal(told[owner])
    kinds = {frame.header["opened"][VICTIM].split()[0] for frame in told.values() if "opened" in frame.header}  # type: ignore
    assert kinds == {"seed"}, "nobody has given the other secret of the victim"
    for guess in (words_of(words[VICTIM]), sum(words_of(words[owner]) for owner in OWNERS)):
        assert likeness(decode(guess), truth) < CHANCE


def test_signatures_count_once_and_for_their_sum(hostile: Hostile) -> None:
    """Repeated under other names, of another session, of nobody."""
    hostile.sealed()
    old = hostile.signatures(OWNERS)
    hostile.sealed()
    mine = hostile.agree(VICTIM, OWNERS).header["signature"]
    other = hostile.agree(OTHERS[0], OWNERS).header["signature"]
    for signed in (
        old,
        dict.fromkeys(OWNERS, mine),
        {VICTIM: mine, OTHERS[0]: other, OTHERS[1]: other, "mallory": mine},
        dict.fromkeys(OWNERS, "00"),
        dict.fromkeys(OWNERS),
        {owner: ["deep"] for owner in OWNERS},
        {},
    ):
        assert "must" in refusal(hostile.open(VICTIM, signed))
    written = (hostile.parties.owned[VICTIM].home / OPENED).read_text()
    assert '"survivors"' not in written, "what was refused is not written down as opened"


def test_replayed_shares_are_not_read(hostile: Hostile) -> None:
    hostile.sealed()
    old = hostile.handed
    hostile.known = hostile.keys()
    hostile.handed = hostile.shares(hostile.known)
    mixed = {**hostile.handed, OWNERS[1]: old[OWNERS[1]]}
    frame = hostile.ask(VICTIM, mixed)
    assert list(frame.header["accused"]) == [OWNERS[1]] and not frame.body  # type: ignore[call-overload]


@pytest.mark.parametrize("opens", ["the others", "the victim"])
def test_another_model_for_all_but_one(opens: str, hostile: Hostile, truth: np.ndarray) -> None:
    """Pasquini et al. 2022: models whose update says nothing for everybody but the victim leave its update as the sum."""
    hostile.known = hostile.keys()
    hostile.handed = hostile.shares(hostile.known)
    words = {owner: hostile.ask(owner, hostile.handed, 1.0 if owner == VICTIM else 0.0) for owner in OWNERS}
    signed = hostile.signatures(OWNERS)
    assert "1 owners have signed" in refusal(hostile.open(VICTIM, signed))
    told = {owner: hostile.open(owner, signed) for owner in OTHERS}
    assert all("opened" in frame.header for frame in told.values()), "they were asked the same, and know of nothing"
    total = hostile.opened(words, OWNERS, told, 1.0 if opens == "the victim" else 0.0)
    assert total is not None and likeness(total, truth) < CHANCE
    # With every secret that was given, in every way that masks can have been derived, and all others' words known.
    alone = hostile.opened(words, [VICTIM], told, 1.0)
    assert alone is not None and likeness(alone, truth) < CHANCE


def test_too_few_and_without_those_who_must_be_in_it(shards: Path, tmp_path: Path) -> None:
    """The owner's policy says of how many and with whom a sum must be, whoever is said to be lost."""
    policy = f'min_secure_members = 4\nsecure_with = ["{OWNERS[0]}"]'
    made = Hostile(desks_in(tmp_path / "owners", shards, policy))
    made.open_run()
    for frame in made.shares(made.keys(OWNERS[:3]), [VICTIM]).values():
        assert "missing: client-03, client-04" in refusal(frame)
    made.sealed()
    assert "fewer than 4" in refusal(made.agree(VICTIM, OWNERS[:3]))
    assert "without client-00" in refusal(made.agree(VICTIM, OWNERS[1:]))
    assert made.agree(VICTIM, OWNERS[:4]).refused is None


def test_terms_under_which_no_sum_would_be_opened_are_refused(shards: Path, tmp_path: Path) -> None:
    parties = desks_in(tmp_path / "owners", shards)
    made = Hostile(parties)
    training = made.terms.as_json()["training"]
    for changes, why in (
        ({"owners": [*OTHERS]}, "this one among them"),
        ({"owners": [VICTIM, VICTIM, VICTIM]}, "this one among them"),
        ({"owners": [VICTIM, OTHERS[0]]}, "fewer than 3"),
        ({"training": {**training, "participation": 0.2}}, "let more take part"),  # type: ignore[dict-item]
    ):
        assert why in refusal(made.open_run([VICTIM], **changes)[VICTIM])
    one = parties.owned[VICTIM]
    parties.desks[VICTIM] = Owner.set_up(VICTIM, one.data, None, one.home).desk()
    assert "this owner has no certificate" in refusal(made.open_run([VICTIM])[VICTIM])


# One hostile owner


def carried_out(
    parties: Desks, folder: Path, spoil: Callable[[str, Frame], Frame], *more: str
) -> tuple[list[dict[str, object]], object]:
    """A whole run with an honest coordinator, where one owner's answers are spoilt."""

    class Spoilt:
        owners = parties.owners

        def call(self, owner: str, request: bytes, timeout: float) -> bytes:
            asked = Frame.unpack(request).parts()
            told = Frame.unpack(parties.desks[owner].answer(request)).parts()
            if owner == BAD:
                said = [f"{a.header['verb']} {a.header.get('number')}" for a in asked]
                told = [spoil(what, t).answering(a) for what, a, t in zip(said, asked, told, strict=False)]
            return Frame.several(told).pack()

    faults = FaultSettings(**{**vars(QUICK), "on_loss": "continue", "patience": 0.0})
    order = order_of(planned("rounds=2", *more), "run", faults, True)
    one = Coordinator(order, folder / "run", Spoilt(), AuditLog(folder / AUDIT, "coordinator"))  # type: ignore[arg-type]
    outcome = one.carry_on()
    return read_audit(folder / AUDIT), outcome  # type: ignore[return-value]


BAD = OWNERS[3]


def header(**changes: object) -> Callable[[Frame], Frame]:
    return lambda frame: Frame({**frame.header, **changes}, frame.body)  # type: ignore[dict-item]


def texts(key: str, change: Callable[[str], object]) -> Callable[[Frame], Frame]:
    return lambda f: Frame({**f.header, key: {n: change(t) for n, t in f.header[key].items()}}, f.body)  # type: ignore


def entry(place: int, value: object) -> Callable[[Frame], Frame]:
    def change(frame: Frame) -> Frame:
        keys = list(frame.header["keys"])  # type: ignore[arg-type]
        keys[place] = value  # type: ignore[call-overload]
        return Frame({"keys": keys})

    return change


def words(change: Callable[[Sealed], Sealed]) -> Callable[[Frame], Frame]:
    return lambda frame: Frame(frame.header, change(Sealed.unpack(frame.body)).pack())


MALFORMED: dict[str, tuple[str, Callable[[Frame], Frame]]] = {
    "no keys": ("seal-keys", header(keys=None)),
    "short keys": ("seal-keys", entry(0, "abcd")),
    "keys that agree with everybody": ("seal-keys", entry(1, "00" * 32)),
    "no signature": ("seal-keys", entry(3, "")),
    "endless signature": ("seal-keys", entry(3, "ab" * 100_000)),
    "no certificate": ("seal-keys", entry(4, "-----BEGIN CERTIFICATE-----")),
    "another's certificate": ("seal-keys", entry(4, Identity.of_kit(kit_of(OWNERS[0])).pem)),
    "no shares": ("seal-shares", header(shares=7)),
    "shares for strangers": ("seal-shares", header(shares={"mallory": "00"})),
    "shares that nobody can read": ("seal-shares", texts("shares", lambda text: "00" * 160)),
    "shares that are no bytes": ("seal-shares", texts("shares", lambda text: ["deep"])),
    "so many shares needed": ("seal-shares", header(needed=10**9)),
    "a wrong accusation of keys": ("seal-shares", lambda f: Frame({"accused": {OWNERS[0]: "a lie"}})),
    "everybody accused": ("seal-shares", lambda f: Frame({"accused": dict.fromkeys(OWNERS, "lies")})),
    "accused of nothing": ("seal-shares", lambda f: Frame({"accused": {"mallory": []}})),
    "no words": ("seal-ask", lambda f: Frame(f.header)),
    "fewer words": ("seal-ask", words(lambda s: Sealed(s.ids, s.words[:, :-1]))),
    "words of another kind": ("seal-ask", words(lambda s: Sealed(s.ids, s.words.double()))),
    "another's words": ("seal-ask", words(lambda s: Sealed((OWNERS[0],), s.words))),
    "other entries": ("seal-ask", header(shape=[["x", "float32", [10**9, 10**9]]])),
    "no entries": ("seal-ask", header(shape={"deep": [[[[]]]]})),
    "no agreement": ("seal-agree", header(signature=None)),
    "a signature of something else": ("seal-agree", header(signature="ab" * 64)),
    "nothing to open with": ("seal-open", header(opened=None)),
    "wrong shares given back": ("seal-open", texts("opened", lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"))),
    "shares that are none": ("seal-open", texts("opened", lambda t: "seed " + "f" * 4000)),
    "no keys ahead": ("seal-keys 2", header(keys=None)),
    "keys ahead without a signature": ("seal-keys 2", entry(3, "")),
    "no shares ahead": ("seal-shares 2", header(shares=7)),
    "shares ahead that nobody can read": ("seal-shares 2", texts("shares", lambda text: "00" * 160)),
    "everybody accused ahead": ("seal-shares 2", lambda f: Frame({"accused": dict.fromkeys(OWNERS, "lies")})),
}


@pytest.mark.parametrize("kind", list(MALFORMED))
def test_what_one_owner_of_five_sends_wrongly_ends_at_that_owner(kind: str, shards: Path, tmp_path: Path) -> None:
    """The run goes on; the owner is named, and nobody else."""
    verb, spoil = MALFORMED[kind]
    parties = desks_in(tmp_path / "owners", shards)
    lines, outcome = carried_out(parties, tmp_path, lambda said, frame: spoil(frame) if said.startswith(verb) else frame)
    assert outcome is not None
    assert {line["owner"] for line in lines if line["event"] in ("owner is lost", "reply refused")} == {BAD}
    assert all(line["code"] == Code.BAD_REPLY for line in lines if line["event"] == "reply refused")


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_quarrel_that_nobody_can_settle_costs_both(who: str, shards: Path, tmp_path: Path) -> None:
    """Shares for one other are unreadable, or are said to be: only those two know. Three go on."""

    def spoil(verb: str, frame: Frame) -> Frame:
        if verb.startswith("seal-shares") and who == "sender" and "shares" in frame.header:
            return header(shares={**frame.header["shares"], OWNERS[0]: "00" * 160})(frame)  # type: ignore[dict-item]
        if verb.startswith("seal-ask") and who == "receiver":
            return Frame({"accused": {OWNERS[0]: "its shares cannot be read"}})
        return frame

    lines, outcome = carried_out(desks_in(tmp_path / "owners", shards), tmp_path, spoil)
    assert outcome is not None
    assert {line["owner"] for line in lines if line["event"] == "owner is lost"} == {BAD, OWNERS[0]}


def test_who_is_at_fault() -> None:
    lie = {"accuser": {"a": "x", "b": "x"}}
    assert set(judged(lie, 5, True)) == set(judged(lie, 5, False)) == {"accuser"}
    assert set(judged({name: {"bad": "x"} for name in "abcd"}, 5, True)) == {"bad"}
    assert set(judged({**{name: {"bad": "x"} for name in "abcd"}, "bad": {"a": "y"}}, 5, True)) == {"bad"}
    assert set(judged({"a": {"bad": "x"}}, 5, True)) == {"a", "bad"}
    assert set(judged({"a": {"bad": "x"}}, 5, False)) == {"a"}
    assert judged({"a": {}, "b": {}}, 5, True) == {}


def test_a_participation_of_one_is_refused_before_anything_runs(shards: Path, tmp_path: Path) -> None:
    parties = desks_in(tmp_path / "owners", shards)
    with pytest.raises(ConfigError, match="a secure sum of one owner is that owner's update"):
        carried_out(parties, tmp_path, lambda verb, frame: frame, "participation=0.2")
    assert not parties.heard and not any((one.home / "runs").exists() for one in parties.owned.values())


def test_a_participation_below_an_owners_minimum_is_refused_when_the_run_is_opened(shards: Path, tmp_path: Path) -> None:
    parties = desks_in(tmp_path / "owners", shards)
    with pytest.raises(Refused, match="let more take part"):
        carried_out(parties, tmp_path, lambda verb, frame: frame, "participation=0.4")
