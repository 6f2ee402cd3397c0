"""The client of a Kafka cluster: settings that both adapters begin with, and errors that say whose they are.

librdkafka tries again whatever happens, in threads of its own. That is right for a query that runs,
since a broker comes back. Before a query starts it would be a long silence. So `check` looks at the
errors that the library has reported meanwhile, and tells at once that a credential is refused or a
topic is missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from emberflow.errors import InputError
from emberflow.extras import need

#: How long a broker gets to answer before a query starts.
CHECK_SECONDS_MAX = 8.0
_LOOK_SECONDS = 0.4
_PAUSE_SECONDS = 0.1
#: The library wants the name of a group. Nobody joins it.
_NO_GROUP = "emberflow-no-group"


class Cluster:
    """Where the brokers are, and how to talk to them. It travels to workers, with its settings."""

    def __init__(self, servers: str, config: Mapping[str, Any] | None, who: str) -> None:
        if not servers or not all(
            part.rpartition(":")[2].isdecimal() for part in servers.split(",")
        ):
            raise InputError(
                f"{who} takes the brokers as 'host:port' or 'host:port,host:port'{_shown(servers)}."
            )
        if "@" in servers:
            raise InputError(
                f"{who} takes the brokers without a user: give sasl.username and sasl.password in "
                f"config=."
            )
        library(who)
        self.servers = servers
        self.who = who
        #: As librdkafka has them, with or without the ``kafka.`` that Spark writes before them.
        self.config = {
            key.removeprefix("kafka."): value for key, value in dict(config or {}).items()
        }

    def settings(self, **own: Any) -> dict[str, Any]:
        """Settings for a client: ``own``, with underscores for dots, and over them those of the user."""
        ours = {
            key if key.endswith("_cb") else key.replace("_", "."): value
            for key, value in own.items()
        }
        return {
            # Errors come by callbacks. The library would print them a second time.
            "log_level": 0,
            # Requests are small and somebody waits for each: do not hold one back for the next.
            "socket.nagle.disable": True,
            **ours,
            **self.config,
            "bootstrap.servers": self.servers,
        }

    def consumer(self, **own: Any) -> Any:
        """A consumer of assigned partitions: it joins no group, commits nothing and makes no topic."""
        return self.made(
            library().Consumer,
            {
                "group.id": _NO_GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "enable.partition.eof": True,
                **self.settings(**own),
            },
        )

    def made(self, kind: Any, settings: dict[str, Any]) -> Any:
        kafka = library()
        try:
            return kind(settings)
        except (kafka.KafkaException, TypeError, ValueError) as error:
            problem = told(error)
            if any(str(value) in problem for key, value in settings.items() if _is_secret(key)):
                problem = "a value that is not shown, because a password is part of the message"
            raise InputError(f"{self.who}: the settings are refused: {problem}") from None

    def partitions_of(
        self, topic: str, seconds: float = CHECK_SECONDS_MAX, *, patient: bool = False
    ) -> int:
        """How many partitions a topic has. Raises `InputError` that says what is wrong.

        A broker that has just started may not know its topics yet. With ``patient`` this waits for it.
        """
        kafka = library()
        heard: list[Any] = []
        consumer = self.consumer(error_cb=heard.append)
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    found = consumer.list_topics(topic, timeout=_LOOK_SECONDS).topics.get(topic)
                except kafka.KafkaException as error:
                    heard.append(error.args[0])
                    found = None
                consumer.poll(0)  # runs the callbacks
                if found is not None and found.error is None and found.partitions:
                    return len(found.partitions)
                if found is not None:
                    time.sleep(
                        _PAUSE_SECONDS
                    )  # the broker answers at once: do not ask in a tight loop
                is_late = time.monotonic() > deadline
                self._raise_if_refused(heard)
                if not patient or is_late:
                    self._raise_if_not_there(topic, found)
                if is_late:
                    raise InputError(
                        f"{self.who}: no broker at {self.servers} has answered within "
                        f"{seconds:.0f} s: {_last_words(heard)}. Is it running, and is "
                        f"security.protocol the one that its listener speaks?"
                    )
        finally:
            consumer.close()

    def _raise_if_refused(self, heard: list[Any]) -> None:
        errors = library().KafkaError
        for error in heard:
            if error.code() in (errors._AUTHENTICATION, errors.SASL_AUTHENTICATION_FAILED):
                raise InputError(
                    f"{self.who}: the broker at {self.servers} refuses the credentials: "
                    f"{error.str()}. Look at sasl.mechanism, sasl.username and sasl.password."
                )
            if error.code() == errors._SSL:
                raise InputError(
                    f"{self.who}: TLS with {self.servers} fails: {error.str()}. Look at "
                    f"ssl.ca.location, and at security.protocol."
                )

    def _raise_if_not_there(self, topic: str, found: Any) -> None:
        errors = library().KafkaError
        code = None if found is None or found.error is None else found.error.code()
        if code in (errors.UNKNOWN_TOPIC_OR_PART, errors._UNKNOWN_TOPIC):
            raise InputError(
                f"{self.who}: there is no topic {topic!r} at {self.servers}. Make it first, with "
                f"as many partitions as you want; none is made here."
            )
        if code in (errors.TOPIC_AUTHORIZATION_FAILED, errors.TOPIC_EXCEPTION):
            raise InputError(f"{self.who}: topic {topic!r}: {found.error.str()}")


def _shown(servers: str) -> str:
    """The brokers as they were given, if there can be no password in them."""
    return f", got {servers!r}" if re.fullmatch(r"[\w.:,\[\] -]*", servers) else ""


def _is_secret(setting: str) -> bool:
    return bool(re.search(r"password|secret|token|\.pem$|oauthbearer\.config", setting))


def told(error: BaseException) -> str:
    """The message of a `KafkaException`, without the names of classes around it."""
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(error)


def _last_words(heard: list[Any]) -> str:
    """The most useful error: one that names a broker rather than the lack of any."""
    errors = library().KafkaError
    vague = (errors._ALL_BROKERS_DOWN, errors._TIMED_OUT)
    telling = [error for error in heard if error.code() not in vague]
    found = telling or heard
    return str(found[-1].str()) if found else "nothing was heard"


def library(who: str = "Kafka") -> ModuleType:
    return need("confluent_kafka", extra="kafka", what=who)
