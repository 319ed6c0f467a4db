"""Suture: subgraph federated learning. One graph cut across several owners, trained together, nothing shown."""

from suture.api import Comparison as Comparison
from suture.api import Options as Options
from suture.api import Result as Result
from suture.api import compare as compare
from suture.api import resume as resume
from suture.api import run as run
from suture.errors import SutureError as SutureError
from suture.settings import Protocol as Protocol
