# SPDX-License-Identifier: BSD-3-Clause
import asyncio
from typing import (
    Any,
    Callable,
    Coroutine,
    Dict,
    Generator,
    Generic,
    Iterable,
    List,
    Mapping,
    Optional,
    TypeVar,
    Union,
    final,
    overload,
)

from ._workers import WorkerInfo
from .options import Timeout

_T = TypeVar("_T")
_U = TypeVar("_U")
_To = Union[str, int, WorkerInfo]

@final
class Future(Generic[_T]):
    def __new__(cls, agent: Optional[Agent] = None) -> Future[_T]: ...
    def wait(self, timeout: Timeout = None) -> _T: ...
    def result(self, timeout: Timeout = None) -> _T: ...
    def exception(self, timeout: Timeout = None) -> Optional[BaseException]: ...
    def value(self) -> _T: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def set_result(self, value: _T, /) -> None: ...
    def set_exception(self, error: Union[BaseException, type], /) -> None: ...
    def add_done_callback(self, callback: Callable[[Future[_T]], object], /) -> None: ...
    def then(self, callback: Callable[[Future[_T]], _U], /) -> Future[_U]: ...
    def __await__(self) -> Generator[Any, None, _T]: ...
    def _notify(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None: ...

@final
class RRef(Generic[_T]):
    def __new__(cls, value: _T, *, agent: Optional[Agent] = None) -> RRef[_T]: ...
    def to_here(self, timeout: Timeout = None) -> _T: ...
    def local_value(self, timeout: Timeout = None) -> _T: ...
    def owner(self) -> WorkerInfo: ...
    def owner_name(self) -> str: ...
    def is_owner(self) -> bool: ...
    def confirmed_by_owner(self) -> bool: ...
    def rpc_sync(self, timeout: Timeout = None) -> Any: ...
    def rpc_async(self, timeout: Timeout = None) -> Any: ...
    def remote(self, timeout: Timeout = None) -> Any: ...
    @property
    def _agent(self) -> Agent: ...
    @property
    def _owner_id(self) -> int: ...
    def _check(self) -> None: ...

@final
class Answer:
    def __call__(self, task: asyncio.Task[Any], /) -> None: ...

@final
class CurrentCall:
    @property
    def caller(self) -> WorkerInfo: ...
    @property
    def method(self) -> str: ...
    def remaining(self) -> Optional[float]: ...
    def cancelled(self) -> bool: ...
    def closing(self) -> bool: ...

@final
class Buffer:
    def __len__(self) -> int: ...

class Agent:
    def __init__(
        self,
        name: str,
        *,
        rank: int,
        world_size: int,
        init_method: Optional[str],
        secret: Optional[bytes],
        bind_address: Optional[str],
        transports: int,
        init_timeout: Timeout,
        rpc_timeout: Timeout,
        lost_grace: Timeout,
        threads: int,
        threads_max: int,
        message_size_max: int,
        log_level: int,
        inherit_deadline: bool,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def _inside(self) -> int: ...
    @overload
    def rpc_sync(
        self,
        to: _To,
        func: Callable[..., Coroutine[Any, Any, _T]],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> _T: ...
    @overload
    def rpc_sync(
        self,
        to: _To,
        func: Callable[..., _T],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> _T: ...
    @overload
    def rpc_sync(
        self,
        to: _To,
        func: str,
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> Any: ...
    @overload
    def rpc_async(
        self,
        to: _To,
        func: Callable[..., Coroutine[Any, Any, _T]],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> Future[_T]: ...
    @overload
    def rpc_async(
        self,
        to: _To,
        func: Callable[..., _T],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> Future[_T]: ...
    @overload
    def rpc_async(
        self,
        to: _To,
        func: str,
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = False,
    ) -> Future[Any]: ...
    @overload
    def remote(
        self,
        to: _To,
        func: Callable[..., Coroutine[Any, Any, _T]],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = True,
    ) -> RRef[_T]: ...
    @overload
    def remote(
        self,
        to: _To,
        func: Callable[..., _T],
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = True,
    ) -> RRef[_T]: ...
    @overload
    def remote(
        self,
        to: _To,
        func: str,
        args: Optional[Iterable[Any]] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Timeout = None,
        *,
        copy: bool = True,
    ) -> RRef[Any]: ...
    def get_worker_info(self, name: Optional[_To] = None) -> WorkerInfo: ...
    def get_worker_infos(self) -> List[WorkerInfo]: ...
    def set_rpc_timeout(self, timeout: Timeout, /) -> None: ...
    def get_rpc_timeout(self) -> float: ...
    def metrics(self) -> Dict[str, int]: ...
    def _rrefs(self) -> List[Dict[str, Any]]: ...
    def _rrefs_held(self) -> List[str]: ...
    def _mark_loop(self) -> None: ...
    def _forked(self) -> None: ...
    def _join(self) -> None: ...
    def _shutdown(self, timeout: Timeout, /) -> None: ...
    def _close(self) -> None: ...
    def _service(self) -> None: ...
    def _executor(self) -> None: ...

@overload
def rpc_sync(
    to: _To,
    func: Callable[..., Coroutine[Any, Any, _T]],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> _T: ...
@overload
def rpc_sync(
    to: _To,
    func: Callable[..., _T],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> _T: ...
@overload
def rpc_sync(
    to: _To,
    func: str,
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> Any: ...
@overload
def rpc_async(
    to: _To,
    func: Callable[..., Coroutine[Any, Any, _T]],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> Future[_T]: ...
@overload
def rpc_async(
    to: _To,
    func: Callable[..., _T],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> Future[_T]: ...
@overload
def rpc_async(
    to: _To,
    func: str,
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = False,
) -> Future[Any]: ...
@overload
def remote(
    to: _To,
    func: Callable[..., Coroutine[Any, Any, _T]],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = True,
) -> RRef[_T]: ...
@overload
def remote(
    to: _To,
    func: Callable[..., _T],
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = True,
) -> RRef[_T]: ...
@overload
def remote(
    to: _To,
    func: str,
    args: Optional[Iterable[Any]] = None,
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Timeout = None,
    *,
    copy: bool = True,
) -> RRef[Any]: ...
def current_call() -> CurrentCall: ...
def collect_all(futures: Iterable[Future[_T]], /) -> Future[List[Future[_T]]]: ...
def _wait_all(futures: Iterable[Future[_T]], timeout: Timeout = None, /) -> List[_T]: ...
def _set_default(agent: Optional[Agent], why: Optional[str], /) -> None: ...
def _get_default() -> Agent: ...
def _exports() -> Dict[str, Callable[..., Any]]: ...
def _rref(index: int, /) -> RRef[Any]: ...
def _serving(agent: Agent, /) -> bool: ...
def _seconds(timeout: Timeout, /) -> float: ...
def _finish() -> None: ...
def memory_live() -> int: ...
def version() -> str: ...
