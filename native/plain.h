/* Plain calls: what the wrappers in record/wrappers.py do where nothing is unusual, in C.

   A wrapper here is in front of one of those in Python. It calls the original itself if the call only needs to be
   recorded, and leaves every other call to the wrapper in Python, which is able to do all. Nothing of this file is
   used without the GIL. See docs/decisions/0020-plain-calls-are-compiled.md. */

#ifndef STAGESCOPE_PLAIN_H
#define STAGESCOPE_PLAIN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030b0000
#include <longintrepr.h>
#endif

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#define MOST_REFS 12
#define MOST_NUMBERS 5
#define MOST_WANTED 6
#define MOST_SITES 2
#define NONE (-1)

/* Of functions for calls that are unusual, so that the others are next to each other in memory. */
#define UNUSUAL __attribute__((cold, noinline))

/* The keyword names of the calls from one call site, and the position of each wanted keyword, NONE if it is missing. */
typedef struct {
    PyObject *names;
    int8_t at[MOST_WANTED];
} CallSite;

/* One wrapper: `original` is what it wraps, `general` the wrapper in Python that takes all other calls. What `refs` and
   `numbers` have is declared by two enums beside each function that can be `call`. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original, *general, *attributes, *weak_references;
    PyObject *refs[MOST_REFS];
    Py_ssize_t numbers[MOST_NUMBERS];
    CallSite sites[MOST_SITES];
} Wrapper;

/* A record of the format, see SPAN in record/format.py. */
typedef struct __attribute__((packed)) {
    int64_t start_ns, end_ns, wait_start_ns, wait_end_ns, bytes;
    int32_t step, stage, microbatch, peer, pair;
    uint32_t name;
    int16_t chunk;
    uint16_t thread;
    uint8_t kind, lane;
    uint16_t reserved;
} Record;

/* A message from the creation of its operation to the end of the wait for its handle. `reference` is a weak reference
   to the operation, and to the handle from then on; `start_ns` and `end_ns` are those of its issue. */
typedef struct {
    PyObject *reference;
    int64_t bytes, start_ns, end_ns;
    int32_t step, stage, microbatch, peer;
    uint8_t kind, is_receive;
} Message;

/* An action in progress, whose tuple has kind, stage, micro-batch and chunk. */
typedef struct {
    PyObject *action;
    int32_t kind, stage, microbatch, chunk;
} Action;

typedef struct Ring Ring;
typedef struct Places Places;
typedef struct DeviceRecords DeviceRecords;
extern PyTypeObject Wrapper_Type, Ring_Type, Pending_Type, Transfers_Type, Places_Type, Event_Type, DeviceRecords_Type,
    Moves_Type, Collections_Type;

/* slots.c: attributes in `__slots__` of a recorder, its guards and its activities, and conversions of numbers. */
typedef struct {
    Py_ssize_t action, alone, device_records, enabled, forward, has_actions, is_in_range, is_in_run, is_off, last_pair,
        pair, plain, plain_in_range, step, waiting_thread;
} Slots;

extern Slots slots;

PyObject *use_slots(PyObject *module, PyObject *args);
int is_other_int32(PyObject *object, int32_t *value);
int64_t now_ns(void);

/* Return a borrowed reference, NULL if the attribute is not set. */
static inline PyObject *get_slot(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

static inline void set_slot(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **place = (PyObject **)((char *)object + offset), *before = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(before);
}

/* Return whether an object is an int of 32 bits, without an exception. */
static inline int is_int32(PyObject *object, int32_t *value)
{
#if PY_VERSION_HEX >= 0x030c0000
    if (PyLong_CheckExact(object) && PyUnstable_Long_IsCompact((PyLongObject *)object)) {
        Py_ssize_t found = PyUnstable_Long_CompactValue((PyLongObject *)object);
        *value = (int32_t)found;
        return found == *value;
    }
#else
    if (PyLong_CheckExact(object) && (size_t)(Py_SIZE(object) + 1) <= 2) { /* at most one digit */
        *value = Py_SIZE(object) == 0 ? 0 : (int32_t)(Py_SIZE(object) * ((PyLongObject *)object)->ob_digit[0]);
        return 1;
    }
#endif
    return is_other_int32(object, value);
}

/* Return what threading.get_ident does. */
static inline unsigned long this_thread(void)
{
    return (unsigned long)pthread_self();
}

/* ring.c: records that wait for the writer. */
int is_open(Ring *ring, PyObject *recorder);
void fetch(const Ring *ring, PyObject *recorder);
int32_t step_of(const Ring *ring);
int begin_record(const Ring *ring, uint8_t kind, Record *record);
Record *next_record(Ring *ring, uint8_t kind);
int append_record(Ring *ring, const Record *record, const int64_t times[4]);
PyObject *noted_in_range(const Ring *ring, int32_t *pair);

/* Return whether the ring is open in a range in which a schedule computes actions. */
static inline int is_in_range(PyObject *recorder)
{
    PyObject *found = get_slot(recorder, slots.plain_in_range);
    return found != NULL && found != Py_None;
}

/* events.c: the functions of CUDA's driver, in the order of `use_driver`; each returns 0 or an error. */
typedef struct {
    int (*create)(void **event, unsigned flags);
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*elapsed)(float *elapsed_ms, void *start, void *end);
    int (*destroy)(void *event);
    int (*is_capturing)(void *stream, int *capture);
    int (*describe)(int error, const char **text);
} Driver;

extern Driver driver;

typedef struct {
    PyObject_HEAD
    void *handle;
    pid_t process;
} Event;

PyObject *use_driver(PyObject *module, PyObject *addresses);
int is_done(const Event *event);
int find_elapsed(const Event *start, const Event *end, int64_t *elapsed_ns);

/* device.c: moments, which are times of the host, or marks of the device where the recorder has `device_records`.
   `moment_of` returns UNMARKED if the begin of an action is left to Python, or its end. A mark has one use: a record, or
   what else has the moment; `keep_moment` adds one, and `forget_moment` and `moment_object` end one. `new_record`
   returns a record of an open ring, whose times are moments, NULL if there is none. */
#define UNMARKED INT64_MIN

int64_t mark_moment(PyObject *recorder, int is_begin);
void keep_mark(PyObject *recorder, int64_t moment);
void forget_mark(PyObject *recorder, int64_t moment);
PyObject *moment_object(PyObject *recorder, int64_t moment);
Record *new_device_record(Ring *ring, PyObject *recorder, uint8_t kind);
DeviceRecords *device_of(PyObject *recorder);
void fetch_device_records(PyObject *recorder);

static inline int has_device(PyObject *recorder)
{
    PyObject *found = get_slot(recorder, slots.device_records);
    return found != NULL && found != Py_None;
}

static inline int64_t moment_of(PyObject *recorder, int is_begin)
{
    return has_device(recorder) ? mark_moment(recorder, is_begin) : now_ns();
}

static inline void keep_moment(PyObject *recorder, int64_t moment)
{
    if (moment < NONE)
        keep_mark(recorder, moment);
}

static inline void forget_moment(PyObject *recorder, int64_t moment)
{
    if (moment < NONE)
        forget_mark(recorder, moment);
}

static inline Record *new_record(Ring *ring, PyObject *recorder, uint8_t kind)
{
    return has_device(recorder) ? new_device_record(ring, recorder, kind) : next_record(ring, kind);
}

static inline void fetch_device(PyObject *recorder)
{
    if (has_device(recorder))
        fetch_device_records(recorder);
}

/* in_progress.c: calls in progress, which the writer thread reads for `stagescope hang`. */
int enter_action(PyObject *action, int64_t start_ns);
int enter_wait(const Message *message, int64_t start_ns);
void leave_call(int place);
PyObject *in_progress(PyObject *module, PyObject *thread);

/* module.c. `take_error` returns the exception that is set, and clears it. `is_of_training` returns whether a signal
   handler of the training has raised it, to which it belongs; if not, it is cleared. `unless_raised` returns the result
   of a call, unless what was `done` afterwards has raised: NULL. It takes both references. */
PyObject *take_error(void);
UNUSUAL int is_of_training(void);
UNUSUAL PyObject *unless_raised(PyObject *result, PyObject *done);

/* The vectorcalls of wrappers; see actions.c and messages.c. */
PyObject *call_action(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_creation(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_issue(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_wait(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_outside_runs(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* The same; see ranges.c. `use_maker` lets calls of the class of a wrapper of this kind need less time. */
PyObject *call_range(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *use_maker(PyObject *module, PyObject *args);
void forget_maker(const Wrapper *wrapper);

/* The same; see megatron.c and exchanges.c. */
PyObject *call_forward(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_backward(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_exchange(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* The same; see deepspeed.c and moves.c. */
PyObject *call_pass(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_load(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_transfer(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *call_move(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

int prepare_events(void);
int prepare_actions(void);
int prepare_messages(void);
int prepare_ranges(void);
int prepare_megatron(void);
int prepare_exchanges(void);
int prepare_deepspeed(void);
int prepare_moves(void);

/* arguments.c. `argument` returns a borrowed reference, NULL if there is no argument or if it is None. */
int intern(PyObject **names, int count, const char *const *texts);
CallSite site_of(Wrapper *self, PyObject *names, PyObject *const *wanted, int count);
PyObject *argument(PyObject *const *args, Py_ssize_t count, int8_t at, Py_ssize_t position);

/* actions.c: `run_action` calls the original and records the action from the moment `start` on, as a wrapper whose first
   references are recorder, guard, ring and actions. `give_to_guard` passes it the exception that is set; -1 if that
   belongs to the training. `abandon_call` ends a call that has failed. */
PyObject *run_action(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names, const Action *found,
                     int64_t start);
UNUSUAL int give_to_guard(const Wrapper *self, PyObject *action);
UNUSUAL void abandon_call(const Wrapper *self, PyObject *action);

/* messages.c: `is_in_classes` keeps the class of a handle whose waits are observed, `positional` and `keywords_of` return
   the tuple and the dict of the arguments of a call. */
int is_in_classes(PyObject *classes, PyObject *handle, PyObject **known_class);
PyObject *positional(PyObject *const *args, Py_ssize_t count);
PyObject *keywords_of(PyObject *const *values, PyObject *names);

/* Ask for the memory of a wrapper, all at once; see `fetch`. */
static inline void fetch_wrapper(const Wrapper *self)
{
    for (size_t line = 0; line < sizeof *self; line += 64)
        __builtin_prefetch((const char *)self + line);
}

static inline PyObject *pass_to(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return PyObject_Vectorcall(function, args, nargsf, names);
}

/* pending.c: the messages whose operation or handle is known, by its address. */
#define MOST_CREATED 16
#define MOST_RECEIVES 128
#define MOST_SENDS 1024 /* a schedule may wait for all sends of a step at its end */
#define MOST_TOGETHER 8 /* messages with the same handle */

/* Messages that were issued, in order. Those from `first` to before `end` are in use, unless their handle is NULL. */
typedef struct {
    int first, end, count, most;
    void **handles;
    Message *messages;
} Issued;

typedef struct {
    PyObject_HEAD
    int created_count;
    Issued receives_issued, sends_issued;
    void *operations[MOST_CREATED];
    Message created[MOST_CREATED];
    void *handles_of_receives[MOST_RECEIVES], *handles_of_sends[MOST_SENDS];
    Message issued_receives[MOST_RECEIVES], issued_sends[MOST_SENDS];
    long long receives;
    int64_t last_receive_ns;
    PyObject *last_receive, *recorder, *take_over, *known_class;
    Ring *ring;
    uint8_t is_receive[256], receive_of[256];
} Pending;

Message *find_created(Pending *pending, PyObject *operation);
Message *find_issued(Pending *pending, PyObject *handle);
int add_created(Pending *pending, PyObject *operation, Message message);
int add_issued(Pending *pending, PyObject *handle, Message message);
void remove_created(Pending *pending, Message *message);
void remove_issued(Pending *pending, Message *message);
int is_awaited(const Pending *pending, uint8_t action, int32_t stage, int32_t microbatch);
int is_reference_to(PyObject *reference, PyObject *object);
PyObject *described(const Message *message);
void let_take_over(PyObject *take_over, int count);
UNUSUAL void give_to_python(Pending *pending);

/* places.c: the places of the actions that made objects. `find_place` returns a borrowed reference. */
int keep_place(Places *self, PyObject *object, PyObject *value, const Action *numbers);
PyObject *find_place(const Places *self, PyObject *made, Action *found);

/* transfers.c: the messages of Megatron-core. `message.reference` is a weak reference to the handle, NULL as soon as
   the wait for it has ended. `tensor` is one to what a receive brings, NULL for a send, whose action is known. */
#define MOST_TRANSFERS 128

typedef struct {
    Message message;
    PyObject *tensor;
    int64_t wait_start_ns, wait_end_ns;
    int32_t chunk;
} Transfer;

typedef struct {
    PyObject_HEAD
    int count, stage, chunk, chunks, rank, ranks;
    char is_on;
    Ring *ring;
    PyObject *recorder, *take_over, *known_class;
    PyObject *handles[MOST_TRANSFERS], *tensors[MOST_TRANSFERS];
    Transfer transfers[MOST_TRANSFERS];
} Transfers;

void fetch_transfers(const Transfers *self);

Transfer *find_handle(Transfers *self, PyObject *handle);
Transfer *find_tensor(Transfers *self, PyObject *tensor);
int add_transfer(Transfers *self, PyObject *handle, PyObject *tensor, Transfer transfer);
Transfer remove_transfer(Transfers *self, Transfer *transfer, PyObject **tensor);
void drop_transfer(Transfer transfer);
int record_transfer(const Transfers *self, const Transfer *transfer);
UNUSUAL void give_transfers(Transfers *self);

/* megatron.c. `leave_to_python` leaves a call to the wrapper in Python, unless a signal handler has raised. */
int is_usual(PyObject *recorder, PyObject *guard, PyObject *runs, const Transfers *transfers);
UNUSUAL PyObject *leave_to_python(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* moves.c: the transfer of DeepSpeed's pipeline engine that is in progress. `is_known` states that all instructions of
   the engine are observed, `given` is a transfer that Python has taken over. Each has another `order`. What is moved
   while it `is_paused` is no part of it. While a batch of the `engine` is running, its `stages` are known, by phase. */
typedef struct {
    PyObject_HEAD
    PyObject *engine, *given, *take_over;
    int stages[2];
    char is_known, is_moving, is_paused;
    unsigned long long order;
    int64_t wait_start_ns, wait_end_ns;
    Message message;
} Moves;

/* Ask for the memory of the transfer in progress; see `fetch`. */
static inline void fetch_moves(const Moves *moves)
{
    for (size_t line = 0; line < sizeof *moves; line += 64)
        __builtin_prefetch((const char *)moves + line, 1);
}

/* deepspeed.c: wrappers whose first references are recorder, guard, ring, watch, `Moves` and numbers, and whose first
   number is the kind. `next_place` counts the instruction, and returns its number, a new reference. `end_in_python`
   takes the reference to the state. */
int is_usual_instruction(const Wrapper *self);
int has_buffer_only(size_t nargsf, PyObject *names);
PyObject *next_place(const Wrapper *self, PyObject *engine, int phase, Action *found);
PyObject *end_in_python(const Wrapper *self, PyObject *state, PyObject *result);

#endif
