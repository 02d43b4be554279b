/* SPDX-License-Identifier: BSD-3-Clause
 * farpy: what the files of the extension farcall._farcall share.
 * Floor: Python (sees farcall.h only). Thread: with the GIL, unless a function says otherwise. */
#ifndef FARPY_H
#define FARPY_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <farcall/farcall.h>

/* Bodies up to this size are copied into the message, larger ones are sent from the bytes object. */
enum { FAR__PY_COPY_MAX = 4096 };

/* The exceptions of farcall/errors.py that C raises by itself. */
#define FAR__PY_ERROR_MAP(X)                                                                       \
    X(RpcError)                                                                                    \
    X(RpcTimeoutError)                                                                             \
    X(RpcCancelledError)                                                                           \
    X(WorkerLostError)                                                                             \
    X(UnknownWorkerError)                                                                          \
    X(UnknownFunctionError)                                                                        \
    X(RemoteError)                                                                                 \
    X(SerializationError)                                                                          \
    X(BackpressureError)                                                                           \
    X(NotInitializedError)                                                                         \
    X(AgentClosedError)                                                                            \
    X(AuthenticationError)                                                                         \
    X(VersionError)

/* The module's state: one an interpreter. Objects keep it alive through their types. */
typedef struct far__py_state {
    PyTypeObject *agent_type, *future_type, *buffer_type, *current_type, *rref_type, *answer_type;
#define FAR__PY_ERROR_FIELD(name) PyObject *name;
    FAR__PY_ERROR_MAP(FAR__PY_ERROR_FIELD)
#undef FAR__PY_ERROR_FIELD

    PyObject *default_agent; /* NULL: none now */
    PyObject *no_agent;      /* why there was one and is none; NULL: never initialised */

    PyObject *exports;  /* name -> function */
    PyObject *sent;     /* function -> place (names.py), checked at each use */
    PyObject *resolved; /* method name -> place */

    PyObject *dumps, *loads;      /* pickle's */
    PyObject *dumps_by_value;     /* names.py: by cloudpickle */
    PyObject *place_of, *resolve; /* names.py */
    PyObject *describe, *rebuild; /* remote.py */
    PyObject *lost, *waits;       /* errors.py, aio.py */
    PyObject *task_call;          /* aio.py: the CurrentCall of the task that runs */
    PyObject *invoke, *proxy;     /* rref.py */
    PyObject *read_rref;          /* what a pickle says for an RRef */
    PyObject *worker_info;        /* the class WorkerInfo */
    PyObject *timedelta;          /* the class */
    PyObject *method_descriptor;  /* the type of list.append */
    PyObject *function_type;      /* the type of a def */
    PyObject *method_type;        /* the type of a bound method */
    PyObject *coroutine_type;     /* the type of what an async def returns */
    PyObject *numpy_asarray;      /* NULL until a tensor arrived; None: no numpy here */
    PyObject *str_id, *str_buffers, *str_buffer_callback, *str_protocol, *str_async, *str_func;
    PyObject *protocol, *empty_tuple;
    bool console; /* __main__ is typed in, so nobody else can import from it */
} far__py_state;

/* The state of an object of ours is in the object, so type slots find it without a search. */
typedef struct far__py_agent {
    PyObject_HEAD
    far__py_state *st;
    far_agent *ref;
    far_worker self; /* far__py_self fills it */
    bool joined, closed, inherit_deadline;
    Py_ssize_t inside;            /* handlers and callbacks that run now */
    struct far__py_rref *rrefs;   /* the RRefs of this agent that are alive */
    struct far__py_later *laters; /* calls whose answer a future will give; answer.c */
    PyObject *weakrefs;
} far__py_agent;

/* A call of ours that ended or will; see future.c. */
typedef struct far__py_future {
    PyObject_HEAD
    far__py_state *st;
    far__py_agent *agent;
    far_future *ref;
    PyObject *value, *error; /* the result once somebody has looked */
    unsigned readers;        /* threads that decode ref's message now */
    bool settable;           /* made by Future(): its holder completes it */
    bool claimed;            /* settable: somebody completes it */
    far_duration packing;    /* time that pickling took off the limit, if worth a word */
    PyObject *weakrefs;
} far__py_future;

/* A handle on a value that lives at a worker; see rref.c. */
typedef struct far__py_rref {
    PyObject_HEAD
    far__py_state *st;
    far__py_agent *agent;
    far_rref *ref;
    struct far__py_rref *prev, *next; /* in the agent's list */
    PyObject *weakrefs;
} far__py_rref;

/* ---- module.c */
far__py_state *far__py_state_of(PyObject *module);
/* The default agent; if there is none, the one whose call this thread serves (calls may come before
 * init_rpc has returned); else an error that says why there is none. New reference. */
far__py_agent *far__py_default_agent(far__py_state *st);
/* Around code that needs Python on a thread that Python owns and that does not hold the GIL. After
 * the atexit hook has run, a thread of an agent never comes back from `enter`. */
PyGILState_STATE far__py_enter(void);
/* This thread works for `agent` and for nobody else. */
void far__py_mark_thread(const far__py_agent *agent);
void far__py_leave(PyGILState_STATE gil);
/* After the atexit hook: nothing of Python's is freed any more. */
bool far__py_finished(void);
void far__py_finish(void);

/* ---- errors.c: far_status and far_failure to exceptions. All return NULL. */
PyObject *far__py_text(const char *text); /* new str; what is no UTF-8 is replaced */
PyObject *far__py_raise(far__py_state *st, far_status status, const char *text);
PyObject *far__py_raise_error(far__py_state *st, const far_error *error);
/* The exception (new reference) for a call that failed; NULL with an error set if that fails. */
PyObject *far__py_failure(far__py_agent *agent, const far_future *future, far_duration packing);
/* Wraps the current exception as SerializationError("<what> <name> cannot be <verb>: ..."); `name` may
 * be NULL. KeyboardInterrupt, MemoryError and errors of farcall stay as they are. */
PyObject *far__py_unsendable(far__py_state *st, const char *what, PyObject *name, const char *verb);
/* Takes the current exception as an object with its traceback attached; new reference. */
PyObject *far__py_take_exception(void);
void far__py_put_exception(PyObject *exception); /* takes it */

/* ---- limits.c: Python's timeouts to durations */
typedef struct far__py_limit_kind {
    far_duration none, zero, endless; /* what None, 0 and infinity mean */
} far__py_limit_kind;
extern const far__py_limit_kind far__py_limit_call, far__py_limit_wait, far__py_limit_plain;
int far__py_limit(far__py_state *st, PyObject *limit, const far__py_limit_kind *kind,
                  far_duration *out);
far_duration far__py_now(void);

/* ---- buffer.c: Python memory sent, received memory seen from Python */
/* Sends `object`'s bytes from where they lie (or copied), C or Fortran contiguous. */
far_buffer *far__py_pin(far__py_state *st, PyObject *object, bool copy);
/* A new farcall._farcall.Buffer; holds `ref`. */
PyObject *far__py_buffer_new(far__py_state *st, far_buffer *ref);
/* The same with a shape; `format` is static. */
PyObject *far__py_buffer_shaped(far__py_state *st, far_buffer *ref, const char *format,
                                Py_ssize_t itemsize, int ndim, const int64_t *shape);
/* While set, asking for a view without PyBUF_WRITABLE gives a read-only one; see serialize.c. */
void far__py_buffer_guard(PyObject *buffer, bool on);
extern PyType_Spec far__py_buffer_spec;

/* ---- serialize.c: pickles */
/* `what` and `name` (may be NULL) are for the error: "the arguments of", "f". `by_value`: cloudpickle
 * at once. `copy`: the message shares no memory with Python. */
typedef struct far__py_pack {
    const char *what;
    PyObject *name;
    bool by_value, copy;
} far__py_pack;
far_message *far__py_pickle(far__py_state *st, PyObject *object, const far__py_pack *pack);
/* A message around bytes that already are a pickle. */
far_message *far__py_pickled(far__py_state *st, PyObject *bytes);
PyObject *far__py_unpickle(far__py_agent *agent, far_message *message);
/* Adds a reference to the message that this thread pickles for; an error if it does not. */
int far__py_pack_rref(far__py_rref *rref, size_t *index);
/* The reference of that index in the message that this thread unpickles; the same object each time. */
PyObject *far__py_read_rref(far__py_state *st, PyObject *index);

/* ---- values.c: values that every language knows */
/* [args, kwargs] of a call by exported name; kwargs may be NULL. */
far_message *far__py_values_call(far__py_state *st, PyObject *args, PyObject *kwargs,
                                 const far__py_pack *pack);
far_message *far__py_values_result(far__py_state *st, PyObject *value, const far__py_pack *pack);
/* Gives (args, kwargs). */
PyObject *far__py_values_read_call(far__py_state *st, far_message *message);
/* A reply of any encoding. */
PyObject *far__py_read_result(far__py_agent *agent, far_message *message);
/* (args, kwargs) of a raw message: its body, then its segments. */
PyObject *far__py_raw_read_call(far__py_state *st, far_message *message);

/* ---- call.c: making calls */
PyObject *far__py_rpc_sync(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *far__py_rpc_async(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);
PyObject *far__py_remote(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
/* Waits without the GIL, through signals. 0: ended; 1: limit is over; -1: a signal handler raised. */
int far__py_wait(far_future *future, far_duration limit);
/* Sets *worker for a name, an id or a WorkerInfo. */
int far__py_worker(far__py_agent *agent, PyObject *to, far_worker *worker);
PyObject *far__py_worker_info(far__py_state *st, const far_worker *worker);

/* ---- places.c: functions and their names on the wire */
/* Where a callable can be imported from: a new method name ("py:module:qualname"), or Py_None when it
 * must go by value, Py_False when it must and plain pickle would only pretend to. */
PyObject *far__py_method_of(far__py_state *st, PyObject *func);
/* The function of that name: exported or importable. New reference; UnknownFunctionError. */
PyObject *far__py_function(far__py_state *st, const char *method);

/* ---- answer.c: how calls end */
/* What the answer of a call needs. Moved to where the answer is given. */
typedef struct far__py_answer {
    far__py_agent *agent; /* borrowed: a thread that serves holds it */
    far_incoming *call;   /* NULL: answered, or somebody else will */
    far_encoding encoding;
    PyObject *current; /* the CurrentCall, once somebody has asked for it */
} far__py_answer;

/* Where a call met an error. */
typedef enum far__py_phase {
    FAR__PY_FIND,
    FAR__PY_READ,
    FAR__PY_RUN,
    FAR__PY_PACK,
} far__py_phase;

/* What a call ended with: a message to send, or (of a remote call) a value to keep. */
typedef struct far__py_outcome {
    far_message *reply;
    PyObject *kept;
} far__py_outcome;

/* Turns the value of the function into an outcome; -1 with an exception set. */
int far__py_answer_pack(const far__py_answer *answer, PyObject *value, far__py_outcome *out);
/* The same for a value that is fetched. */
far_message *far__py_answer_fetched(const far__py_answer *answer, PyObject *value);
/* Gives the answer; without the GIL. */
void far__py_answer_give(far_incoming *call, const far__py_outcome *outcome);
/* Answers with the current exception. */
void far__py_answer_fail(far__py_answer *answer, far__py_phase at);
/* The call that it stands for is over: CurrentCall says so from now on. */
far_incoming *far__py_answer_detach(far__py_answer *answer);
/* The future's result will be the answer; or the task's, which runs the coroutine on the agent's event
 * loop. They take the answer; -1 with an exception set: they did not. */
int far__py_answer_by_future(far__py_answer *answer, far__py_future *future);
int far__py_answer_by_task(far__py_answer *answer, PyObject *coroutine);
/* The agent is closed: no future can give an answer any more. */
void far__py_laters_cancel(far__py_agent *agent);
extern PyType_Spec far__py_answer_spec;

/* ---- handler.c: serving */
void far__py_serve(far_incoming *call, void *arg);    /* far_handler; arg is the far__py_agent */
void far__py_fetch(far_incoming *call, void *arg);    /* the same for fetches */
PyObject *far__py_current(far__py_state *st);         /* CurrentCall of this thread, or an error */
PyObject *far__py_current_of(far__py_answer *answer); /* borrowed */
void far__py_current_answered(PyObject *current);
/* Time left of the call this thread serves; FAR_FOREVER if none or no limit. */
far_duration far__py_current_left(void);
far__py_agent *far__py_serving_agent(void);   /* borrowed; NULL: this thread serves no call */
void far__py_mark_loop(far__py_agent *agent); /* this thread runs the agent's event loop */
extern PyType_Spec far__py_current_spec;

/* ---- rref.c */
PyObject *far__py_rref_new(far__py_agent *agent, far_rref *ref); /* takes ref */
/* Raises what a use of the reference was refused with. NULL. */
PyObject *far__py_rref_refused(far__py_rref *self, far_status status);
/* far_free_fn of kept values, which are references to Python objects. */
void far__py_drop_value(void *value);
/* What is known about references, as a list of dicts; the RRefs that the program holds, as texts. */
PyObject *far__py_rrefs(far__py_agent *agent);
PyObject *far__py_rrefs_held(far__py_agent *agent);
extern PyType_Spec far__py_rref_spec;

/* ---- future.c */
PyObject *far__py_future_new(far__py_agent *agent, far_future *ref); /* takes ref */
/* The value of a call that has ended, or its exception raised; used once. */
PyObject *far__py_result(far__py_agent *agent, far_future *ref, far_duration packing);
/* gate.c: many futures at once */
PyObject *far__py_wait_all(far__py_state *st, PyObject *args);
PyObject *far__py_collect_all(far__py_state *st, PyObject *given);
far__py_future *far__py_future_made(far__py_state *st, far__py_agent *agent);
PyObject *far__py_future_value(far__py_future *self); /* ended: new reference or raises */
extern PyType_Spec far__py_future_spec;

/* ---- agent.c, service.c */
/* This worker; all zero before it is known. Calls may come before join has returned. */
const far_worker *far__py_self(far__py_agent *self);
extern PyType_Spec far__py_agent_spec;
PyObject *far__py_service_run(PyObject *self, PyObject *none);
far__py_agent *far__py_service_agent(void); /* borrowed; NULL: this is no service thread */
PyObject *far__py_executor_run(PyObject *self, PyObject *none);

#endif
