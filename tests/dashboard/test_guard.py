"""Who is answered: nobody without the token, no page but our own, no name but ours."""

from __future__ import annotations

import httpx
import pytest
from dashboards import Serve
from starlette.datastructures import Headers

from suture.dashboard.guard import MOST_BODY, Gate


def test_nothing_is_told_without_the_token(serve: Serve) -> None:
    served = serve()
    with httpx.Client(base_url=served.address) as stranger:
        for path in ("/", "/api/runs", "/api/hello", "/api/events", "/static/dashboard.js", "/runs/x/report", "/nowhere"):
            answer = stranger.get(path)
            assert answer.status_code == 401, path
            assert served.dashboard.gate.form not in answer.text and served.root.name not in answer.text
        assert stranger.get("/?token=wrong").status_code == 401
        assert not stranger.cookies
        assert stranger.get("/api/runs", cookies={served.dashboard.gate.cookie: "wrong"}).status_code == 401
        welcomed = stranger.get(f"/?token={served.dashboard.gate.token}")
        kept = welcomed.headers["set-cookie"].lower()
        assert "httponly" in kept and "samesite=strict" in kept and served.dashboard.gate.token.lower() not in kept
        assert stranger.get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
        "[::1",
        "a:b:{port}",
    ],
)
def test_another_name_for_this_address_is_refused(serve: Serve, host: str) -> None:
    served = serve()
    port = served.dashboard.gate.port
    answer = served.get("/api/runs", headers={"host": host.format(port=port)})
    assert answer.status_code in (400, 421), host
    assert "rows" not in answer.text


def test_names_that_lead_here() -> None:
    near, far = Gate(8642), Gate(8642, "0.0.0.0")
    assert all(near.knows_host(f"{name}:8642") for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"))
    assert not any(near.knows_host(name) for name in ("192.168.0.7:8642", "localhost", "localhost:8643", "evil:8642"))
    assert (
        far.knows_host("192.168.0.7:8642") and far.knows_host("[fe80::1]:8642") and not far.knows_host("evil.example:8642")
    )
    assert Gate(8642, "box.lan").knows_host("box.lan:8642")


CHANGES = ("/api/start", "/api/check", "/api/runs/x/stop", "/api/runs/x/resume")


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "https://{here}"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"x-suture-form": ""}, 403),
        ({"x-suture-form": "guessed"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_pages_change_nothing(serve: Serve, path: str, headers: dict[str, str], status: int) -> None:
    served = serve()
    here = served.address.removeprefix("http://")
    answer = served.post(path, {}, **{name: value.format(here=here) for name, value in headers.items()})
    assert answer.status_code == status
    assert list(served.root.iterdir()) == []


def test_a_post_that_says_nothing_of_where_it_comes_from(serve: Serve) -> None:
    served = serve()
    word = {"x-suture-form": served.dashboard.gate.form}
    assert served.browser.post("/api/check", json={}, headers=word).status_code == 403
    answer = served.browser.post("/api/check", json={}, headers=word | {"sec-fetch-site": "same-origin"})
    assert answer.status_code == 200 and answer.json()["field"] == "methods"


def test_other_pages_read_nothing(serve: Serve) -> None:
    served = serve()
    for site in ("cross-site", "same-site"):
        assert served.get("/api/runs", headers={"sec-fetch-site": site, "sec-fetch-mode": "cors"}).status_code == 403
        assert served.get("/api/events", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    answer = served.get("/api/runs", headers={"origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_only_get_and_post(serve: Serve) -> None:
    served = serve()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert served.browser.request(method, "/api/runs").status_code == 405
    assert served.get("/api/start").status_code == 405


def test_a_long_request_is_refused(serve: Serve) -> None:
    served = serve()
    assert served.post("/api/check", {"dataset": "x" * MOST_BODY}).status_code == 413

    def without_length() -> object:
        for _ in range(40):
            yield b"[" * 10_000

    headers = {
        "origin": served.address,
        "x-suture-form": served.dashboard.gate.form,
        "content-type": "application/json",
    }
    answer = served.browser.post("/api/check", content=without_length(), headers=headers)
    assert answer.status_code in (400, 409, 413)


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/runs/nothing", "/nowhere", "/static/dashboard.js"])
def test_every_answer_says_what_pages_may_do(serve: Serve, path: str) -> None:
    headers = serve().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src 'self';" in policy
    assert "unsafe-eval" not in policy and headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer" and headers["cross-origin-resource-policy"] == "same-origin"


def test_a_comparison_of_secrets_takes_any_text() -> None:
    gate = Gate(1)
    assert not gate.opens("suture-1=\udcff") and not gate.opens("\x00;;=") and not gate.opens("")
    refused = gate.refusal("POST", "/api/start", Headers({"host": "127.0.0.1:1", "x-suture-form": "\xff"}), "")
    assert refused is not None and refused.status_code == 401
