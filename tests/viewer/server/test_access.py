import pytest

from stagescope.viewer.server.access import Access, Asked

HOST = "127.0.0.1:8000"


@pytest.fixture
def access():
    return Access(8000)


def asked(path="/", query="", method="GET", **headers):
    return Asked(method, path, query, {"host": HOST, **{k.replace("_", "-"): v for k, v in headers.items()}})


def known(access, path="/run/a/api/meta", method="GET", **headers):
    return asked(path, method=method, cookie=f"{access.cookie_name}={access.session}", **headers)


def test_the_link_hands_out_a_cookie_that_scripts_and_other_pages_do_not_get(access):
    answer = access.check(asked(query=f"token={access.token}"))
    assert answer.status == 200
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert cookie == f"{access.cookie_name}={access.session}"
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert access.token not in answer.text
    assert access.session not in answer.text


def test_the_link_works_once(access):
    assert access.check(asked(query=f"token={access.token}")).status == 200
    again = access.check(asked(query=f"token={access.token}"))
    assert again.status == 403
    assert "Set-Cookie" not in again.headers


def test_who_is_known_already_is_led_away_from_the_token(access):
    again = known(access, "/")._replace(query="token=anything")
    assert access.check(again) == (303, "", {"Location": "/"})
    assert not access.token_used


@pytest.mark.parametrize(
    "query", ["token=wrong", "token=", "", "token=%ff%00", "Token=1", "token=" + "x" * 9000]
)
def test_a_wrong_token_opens_nothing_and_does_not_use_the_link_up(access, query):
    answer = access.check(asked(query=query))
    assert answer.status == 403
    assert access.check(asked(query=f"token={access.token}")).status == 200


def test_a_token_elsewhere_than_at_the_door_opens_nothing(access):
    assert access.check(asked("/run/a/api/meta", f"token={access.token}")).status == 403
    assert access.check(asked(query=f"token={access.token}", method="HEAD")).status == 403
    assert not access.token_used


@pytest.mark.parametrize(
    "cookie", ["", "stagescope-8000=", "stagescope-8000=x", "other=1", "=;;=\x00", "a=b; c"]
)
def test_a_request_without_the_right_cookie_is_refused(access, cookie):
    assert access.check(asked("/run/a/api/meta", cookie=cookie)).status == 403


def test_the_cookie_of_a_server_on_another_port_opens_nothing(access):
    other = Access(8001)
    assert access.check(asked(cookie=f"{other.cookie_name}={other.session}")).status == 403
    assert access.check(asked(cookie=f"{access.cookie_name}={other.session}")).status == 403


def test_the_cookie_lets_questions_through(access):
    assert access.check(known(access)) is None
    assert access.check(known(access, method="HEAD")) is None
    for host in access.hosts:
        assert access.check(known(access, host=host)) is None
        assert access.check(known(access, origin=f"http://{host}", sec_fetch_site="same-origin")) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "127.0.0.1",
        "127.0.0.1:8001",
        "0.0.0.0:8000",
        "127.0.0.1:8000.evil",
    ],
)
def test_a_name_that_only_resolves_to_this_machine_is_refused_even_with_the_cookie(access, host):
    assert access.check(known(access, host=host)).status == 403


@pytest.mark.parametrize(
    "origin", ["null", "", "http://evil.example", "https://127.0.0.1:8000", "http://127.0.0.1:9000"]
)
def test_a_foreign_origin_is_refused_even_with_the_cookie(access, origin):
    assert access.check(known(access, origin=origin)).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_pages_of_others_get_nothing_by_way_of_a_browser_that_has_the_cookie(access, site):
    assert access.check(known(access, sec_fetch_site=site)).status == 403


def test_a_program_of_the_user_may_lead_a_browser_to_the_door(access):
    answer = access.check(asked(query=f"token={access.token}", sec_fetch_site="cross-site"))
    assert answer.status == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PATCH", "get", "X"]
)
def test_methods_that_do_more_than_read_are_not_allowed(access, method):
    answer = access.check(known(access, method=method))
    assert answer.status == 405
    assert answer.headers == {"Allow": "GET, HEAD"}


def test_a_request_for_another_protocol_is_refused(access):
    assert access.check(known(access, upgrade="websocket")).status == 403


def test_what_is_refused_names_neither_secret(access):
    for one in (asked(), asked(host="x"), known(access, origin="x"), known(access, method="POST")):
        answer = access.check(one)
        assert access.token not in str(answer)
        assert access.session not in str(answer)


def test_every_server_has_secrets_of_its_own():
    servers = [Access(8000) for _ in range(3)]
    assert len({secret for one in servers for secret in (one.token, one.session)}) == 6
    assert all(len(secret) >= 43 for one in servers for secret in (one.token, one.session))
