from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from suture.core.message import Message, Model, Nothing, Record, Rows
from suture.core.packing import DTYPES, MAGIC
from suture.core.tree import Tree, tile
from suture.errors import IntegrityError


@dataclass(frozen=True)
class Parcel(Message):
    """One field of every kind."""

    params: Tree
    score: Tensor
    embeddings: Rows
    rounds: int
    rate: float
    final: bool
    note: str


Header = dict[str, object]


def parcel(ids: tuple[str, ...] = ("a", "b", "c"), lengths: tuple[int, ...] = (2, 0, 3), seed: int = 0) -> Parcel:
    rng = torch.Generator().manual_seed(seed)
    clients = len(ids)
    return Parcel(
        ids,
        {"conv.weight": torch.randn(clients, 2, 3, generator=rng), "count": torch.arange(clients)},
        torch.randn(clients, generator=rng),
        Rows(torch.randn(sum(lengths), 4, generator=rng), torch.tensor([0, *lengths]).cumsum(0)),
        7,
        0.5,
        False,
        "naïve ☃",
    )


def random_parcel(seed: int) -> Parcel:
    """Any number of clients, widths, dtypes and ragged lengths, empty ones too."""
    draw = random.Random(seed)
    clients = draw.randint(1, 5)
    ids = tuple(draw.choice(["x", "Ünïcode-", 'quo"te', "a long name "]) + str(k) for k in range(clients))
    rng = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        return torch.randint(-100, 100, shape, generator=rng).to(draw.choice(list(DTYPES.values())))

    widths = [draw.randint(0, 3) for _ in range(draw.randint(0, 3))]
    lengths = [draw.choice([0, 1, 5, 12]) for _ in range(clients)]
    return Parcel(
        ids,
        {f"layer{i}.weight": tensor(clients, *widths) for i in range(draw.randint(0, 3))},
        tensor(clients, *widths[1:]),
        Rows(tensor(sum(lengths), *widths), torch.tensor([0, *lengths]).cumsum(0)),
        draw.randint(-(10**12), 10**12),
        draw.choice([0.1, -1e-30, float("inf"), 3.0]),
        draw.random() < 0.5,
        draw.choice(["", "text", "\n\x00"]),
    )


def assert_same(left: Record, right: Record) -> None:
    assert type(left) is type(right)
    assert left.ids == right.ids
    ours, theirs = left.tensors(), right.tensors()
    assert list(ours) == list(theirs)
    for path, tensor in ours.items():
        assert tensor.dtype == theirs[path].dtype, path
        assert torch.equal(tensor, theirs[path]), path
    scalars = [{n: v for n, v in record.contents() if isinstance(v, int | float | bool | str)} for record in (left, right)]
    assert scalars[0] == scalars[1]


class TestRows:
    rows = Rows(torch.arange(10.0).view(5, 2), torch.tensor([0, 2, 2, 5]))

    @pytest.mark.parametrize(
        ("index", "values", "ptr"),
        [([2, 0], [2, 3, 4, 0, 1], [0, 3, 5]), ([1], [], [0, 0]), ([], [], [0]), ([0, 1], [0, 1], [0, 2, 2])],
    )
    def test_select_takes_whole_clients_in_the_given_order(
        self, index: list[int], values: list[int], ptr: list[int]
    ) -> None:
        chosen = self.rows.select(index)
        assert torch.equal(chosen.values, self.rows.values[values])
        assert chosen.ptr.tolist() == ptr

    def test_concat_undoes_select(self) -> None:
        joined = Rows.concat([self.rows.select([0]), self.rows.select([1, 2])])
        assert torch.equal(joined.values, self.rows.values)
        assert torch.equal(joined.ptr, self.rows.ptr)


class TestSelectConcatReplace:
    def test_select_goes_by_id_not_by_place(self) -> None:
        whole = parcel()
        part = whole.select(["c", "a"])
        assert part.ids == ("c", "a")
        assert torch.equal(part.params["conv.weight"], whole.params["conv.weight"][[2, 0]])
        assert part.score.tolist() == whole.score[[2, 0]].tolist()
        assert torch.equal(part.embeddings.values, whole.embeddings.values[[2, 3, 4, 0, 1]])
        assert part.embeddings.ptr.tolist() == [0, 3, 5]
        assert (part.rounds, part.rate, part.final, part.note) == (7, 0.5, False, "naïve ☃")

    def test_select_of_everybody_in_order_is_the_record_itself(self) -> None:
        whole = parcel()
        assert whole.select(["a", "b", "c"]) is whole

    def test_select_of_a_stranger_names_it(self) -> None:
        with pytest.raises(KeyError, match="Parcel holds nothing for client z"):
            parcel().select(["a", "z"])

    def test_select_keeps_tiled_models_tiled(self) -> None:
        model = Model(("a", "b", "c"), tile({"w": torch.randn(1, 4)}, 3))
        part = model.select(["c", "a"]).params["w"]
        assert part.stride(0) == 0
        assert part.data_ptr() == model.params["w"].data_ptr()

    def test_concat_joins_what_select_took_apart(self) -> None:
        whole = parcel()
        assert_same(Parcel.concat([whole.select(["a"]), whole.select(["b", "c"])]), whole)
        assert_same(Parcel.concat([whole.select(["c"]), whole.select(["a", "b"])]).select(["a", "b", "c"]), whole)

    def test_concat_of_tiled_models(self) -> None:
        parts = [Model((i,), tile({"w": torch.full((1, 2), float(k))}, 1)) for k, i in enumerate("ab")]
        assert Model.concat(parts).params["w"].tolist() == [[0.0, 0.0], [1.0, 1.0]]

    def test_concat_refuses_a_shared_scalar_that_differs(self) -> None:
        late = dataclasses.replace(parcel().select(["a"]), ids=("d",), rounds=8)
        with pytest.raises(ValueError, match="'rounds' is shared by all clients but differs"):
            Parcel.concat([parcel(), late])

    def test_replace_rows_changes_those_clients_only(self) -> None:
        old, new = parcel(), parcel(("c", "a"), (1, 4), seed=1)
        merged = old.replace_rows(new)
        assert merged.ids == old.ids
        for name, source in (("a", new), ("b", old), ("c", new)):
            assert_same(merged.select([name]), source.select([name]))

    def test_replace_rows_by_everybody_in_another_order(self) -> None:
        old, new = parcel(), parcel(("b", "c", "a"), (1, 4, 0), seed=1)
        assert_same(old.replace_rows(new), new.select(["a", "b", "c"]))

    def test_replace_rows_leaves_both_records_alone(self) -> None:
        old, new = parcel(), parcel(("b",), (1,), seed=1)
        old.replace_rows(new)
        assert_same(old, parcel())
        assert_same(new, parcel(("b",), (1,), seed=1))

    def test_replace_rows_of_a_tiled_state(self) -> None:
        old = Model(("a", "b", "c"), tile({"w": torch.zeros(1, 2)}, 3))
        merged = old.replace_rows(Model(("b",), {"w": torch.ones(1, 2)}))
        assert merged.params["w"].tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
        assert not old.params["w"].any()

    def test_an_empty_model_is_a_message_too(self) -> None:
        nothing = Model(("a", "b"), {})
        assert Model.concat([nothing.select(["b"]), nothing.select(["a"])]).ids == ("b", "a")
        assert_same(Model.unpack(nothing.pack()), nothing)


class TestBytes:
    @pytest.mark.parametrize("seed", range(60))
    def test_round_trip(self, seed: int) -> None:
        whole = random_parcel(seed)
        assert_same(Parcel.unpack(whole.pack()), whole)

    @pytest.mark.parametrize("seed", range(60))
    def test_nbytes_is_what_each_client_really_sends(self, seed: int) -> None:
        whole = random_parcel(seed)
        assert whole.nbytes() == [len(whole.select([name]).pack()) for name in whole.ids]

    def test_nbytes_of_tiled_models_and_of_the_empty_message(self) -> None:
        model = Model(("a", "much longer"), tile({"w": torch.ones(1, 100)}, 2))
        assert model.nbytes() == [len(model.select([name]).pack()) for name in model.ids]
        assert model.nbytes()[1] == model.nbytes()[0] + len("much longer") - 1
        assert Nothing(("a",)).nbytes() == [len(Nothing(("a",)).pack())]

    def test_what_arrives_is_its_own_memory(self) -> None:
        data = parcel().pack()
        arrived = Parcel.unpack(data)
        arrived.score.zero_()
        assert_same(Parcel.unpack(data), parcel())

    def test_the_format_is_the_documented_one(self) -> None:
        data = Model(("a",), {"w": torch.tensor([[1.0, 2.0]])}).pack()
        assert data[:4] == b"SUT1"
        length = int.from_bytes(data[4:8], "little")
        header = json.loads(data[8 : 8 + length])
        assert header == {
            "type": "Model",
            "ids": ["a"],
            "scalars": {},
            "tensors": [["params.w", "float32", [1, 2]]],
        }
        assert data[8 + length :] == torch.tensor([1.0, 2.0]).numpy().tobytes()

    def test_tensors_and_shapes_are_named_by_path(self) -> None:
        whole = parcel()
        paths = ["params.conv.weight", "params.count", "score", "embeddings.values", "embeddings.ptr"]
        assert list(whole.tensors()) == paths
        assert whole.shapes_per_client()[1] == {
            "params.conv.weight": (2, 3),
            "params.count": (),
            "score": (),
            "embeddings": (0, 4),
        }
        assert whole.shapes_per_client()[2]["embeddings"] == (3, 4)

    def test_an_unknown_dtype_does_not_leave(self) -> None:
        with pytest.raises(TypeError, match="float16 does not travel"):
            Model(("a",), {"w": torch.ones(1, 2, dtype=torch.float16)}).pack()


def reheaded(change: Callable[[Header], object], body: bytes | None = None) -> bytes:
    """A packed parcel whose header was changed."""
    data = parcel().pack()
    end = 8 + int.from_bytes(data[4:8], "little")
    header = json.loads(data[8:end])
    replacement = change(header)
    text = json.dumps(header if replacement is None else replacement).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text + (data[end:] if body is None else body)


def layout(header: Header) -> list[list[object]]:
    entries = header["tensors"]
    assert isinstance(entries, list)
    return entries


def set_key(name: str, value: object) -> Callable[[Header], object]:
    return lambda header: header | {name: value}


def set_scalar(name: str, value: object) -> Callable[[Header], object]:
    def change(header: Header) -> None:
        scalars = header["scalars"]
        assert isinstance(scalars, dict)
        scalars[name] = value

    return change


def set_entry(index: int, part: int, value: object) -> Callable[[Header], object]:
    return lambda header: layout(header)[index].__setitem__(part, value)


MALFORMED: dict[str, Callable[[Header], object]] = {
    "another type": set_key("type", "Model"),
    "type is no text": set_key("type", 5),
    "ids are a number": set_key("ids", 5),
    "ids are text": set_key("ids", "abc"),
    "ids hold a number": set_key("ids", ["a", "b", 3]),
    "an id twice": set_key("ids", ["a", "b", "b"]),
    "too few ids": set_key("ids", ["a", "b"]),
    "no ids": set_key("ids", []),
    "scalars are a list": set_key("scalars", [1]),
    "scalars are missing": set_key("scalars", {}),
    "a scalar too many": set_scalar("hidden", 1),
    "a scalar of another type": set_scalar("rounds", "7"),
    "a truth value for a number": set_scalar("rounds", True),
    "a nested scalar": set_scalar("note", {"a": [1]}),
    "a null scalar": set_scalar("rate", None),
    "tensors are a number": set_key("tensors", 3),
    "tensors are missing": lambda h: h.pop("tensors") and None,
    "an unknown key": set_key("extra", 1),
    "header is a list": lambda h: [1, 2],
    "header is text": lambda h: "header",
    "header is null-like": lambda h: 0,
    "a layout entry of two": lambda h: layout(h)[0].pop() and None,
    "a layout entry that is text": lambda h: layout(h).__setitem__(0, "abc"),  # type: ignore[call-overload]
    "an unknown dtype": set_entry(0, 1, "complex64"),
    "a dtype that is a list": set_entry(0, 1, ["float32"]),
    "a path that is a number": set_entry(0, 0, 4),
    "a path of no field": set_entry(2, 0, "elsewhere"),
    "a path twice": set_entry(1, 0, "params.conv.weight"),
    "Rows without ptr": set_entry(4, 0, "embeddings.other"),
    "a negative shape": set_entry(0, 2, [-3, -2, 3]),
    "a shape that is text": set_entry(0, 2, "323"),
    "a shape with a fraction": set_entry(0, 2, [3, 2, 3.0]),
    "a shape with infinity": set_entry(0, 2, [3, 2, float("inf")]),
    "a shape with true": set_entry(0, 2, [3, 2, 3, True]),
    "a huge shape": set_entry(0, 2, [2**40, 2**40]),
    "a huge empty shape": lambda h: layout(h).append(["params.more", "float32", [0, 10**30]]),
    "an overflowing empty shape": lambda h: layout(h).append(["params.more", "float32", [2**62, 2**62, 0]]),
    "a shape of another client axis": set_entry(0, 2, [2, 3, 3]),
    "no client axis": lambda h: layout(h).append(["params.more", "float32", [0]]),
}


class TestMalformed:
    """Whatever arrives, the answer is a record or IntegrityError, never another exception."""

    def test_cut_at_every_position(self) -> None:
        data = parcel().pack()
        for end in range(len(data)):
            with pytest.raises(IntegrityError):
                Parcel.unpack(data[:end])

    def test_extra_bytes(self) -> None:
        for extra in (b"\x00", b"SUT1", b"x" * 100):
            with pytest.raises(IntegrityError, match="longer than its header says"):
                Parcel.unpack(parcel().pack() + extra)

    def test_every_flipped_byte_of_the_header(self) -> None:
        data = parcel().pack()
        end = 8 + int.from_bytes(data[4:8], "little")
        survived = 0
        for position in range(end):
            for flip in (0x01, 0x20, 0x80, 0xFF):
                broken = bytearray(data)
                broken[position] ^= flip
                try:
                    Parcel.unpack(bytes(broken))
                    survived += 1  # a changed letter of a name or digit of a scalar is still a record
                except IntegrityError:
                    pass
        assert survived < 4 * end / 2

    @pytest.mark.parametrize("seed", range(20))
    def test_random_noise(self, seed: int) -> None:
        draw = random.Random(seed)
        data = bytearray(parcel().pack())
        for _ in range(draw.randint(1, 30)):
            data[draw.randrange(4, len(data))] = draw.randrange(256)
        try:
            Parcel.unpack(bytes(data))
        except IntegrityError:
            return

    def test_the_unchanged_header_is_accepted(self) -> None:
        assert_same(Parcel.unpack(reheaded(lambda header: None)), parcel())

    @pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
    def test_wrong_header(self, change: Callable[[Header], object]) -> None:
        with pytest.raises(IntegrityError, match="refused"):
            Parcel.unpack(reheaded(change))

    def test_endlessly_nested_header(self) -> None:
        text = b"[" * 200_000
        with pytest.raises(IntegrityError):
            Parcel.unpack(MAGIC + len(text).to_bytes(4, "little") + text)

    def test_header_that_is_no_text(self) -> None:
        with pytest.raises(IntegrityError):
            Parcel.unpack(MAGIC + (4).to_bytes(4, "little") + b"\xff\xfe\xfd\xfc")

    def test_not_ours(self) -> None:
        for data in (b"", b"SUT", b"SUT1", b"PK\x03\x04" + b"\x00" * 50):
            with pytest.raises(IntegrityError):
                Parcel.unpack(data)

    @pytest.mark.parametrize("ptr", [[1, 2, 2, 5], [0, 3, 2, 5], [0, 2, 2, 4], [0, 2, 2, 6]])
    def test_ragged_bounds_that_lie(self, ptr: list[int]) -> None:
        good = parcel()
        body = good.pack()[: -4 * 8] + torch.tensor(ptr).numpy().tobytes()  # the bounds come last
        with pytest.raises(IntegrityError, match="'embeddings' of a Parcel"):
            Parcel.unpack(body)

    def test_truth_values_other_than_true_and_false(self) -> None:
        data = Model(("a",), {"mask": torch.tensor([[True, False]])}).pack()
        with pytest.raises(IntegrityError, match="neither true nor false"):
            Model.unpack(data[:-1] + b"\x02")

    def test_a_message_of_another_type_with_the_same_fields(self) -> None:
        @dataclass(frozen=True)
        class Letter(Message):
            params: Tree

        with pytest.raises(IntegrityError, match="expected a Letter message, got 'Model'"):
            Letter.unpack(Model(("a",), {"w": torch.ones(1)}).pack())
