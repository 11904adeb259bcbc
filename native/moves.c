/* The sends and receives of DeepSpeed's pipeline engine; see record/frameworks/deepspeed_transfers.py.

   An instruction calls functions that move one tensor each, so it is followed in a `Moves` while it is in progress.
   Whatever is unusual is done in Python: `give` calls `take_over` before that, which returns the Transfer that Python
   follows from then on. So are receives where actions are timed on a device: the wait for them is timed there, too. */

#include "plain.h"

enum { RECORDER, GUARD, RING, WATCH, MOVES, RANKS };
enum { KIND, IS_RECEIVE };

#define MOVED 2 /* arguments of a function that moves a tensor: that and the stage at the other end */

static PyObject *nbytes, *find_rank;

int prepare_moves(void)
{
    nbytes = PyUnicode_InternFromString("nbytes");
    find_rank = PyUnicode_InternFromString("find_rank");
    return nbytes && find_rank ? 0 : -1;
}

/* Let Python follow the transfer in progress from now on, if there is one. Return -1 with an exception that belongs to
   the training. */
static int give(Moves *self)
{
    if (!self->is_moving || self->is_paused)
        return 0;
    const Message *message = &self->message;
    unsigned long long own = self->order;
    self->is_moving = 0;
    if (self->take_over == NULL)
        return 0;
    PyObject *given = PyObject_CallFunction(
        self->take_over, "i(iii)i(LLi)(LL)", message->kind, message->stage, message->microbatch, 0, message->step,
        (long long)message->start_ns, (long long)message->bytes, message->peer, (long long)self->wait_start_ns,
        (long long)self->wait_end_ns);
    if (given == NULL)
        return is_of_training() ? -1 : 0;
    if (self->order == own)
        Py_XSETREF(self->given, given);
    else
        Py_DECREF(given);
    return 0;
}

static PyObject *give_to_general(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return give((Moves *)self->refs[MOVES]) < 0 ? NULL : pass_to(self->general, args, nargsf, names);
}

/* Return whether a transfer of this direction may be recorded here: all of its times are those of the host. */
static int is_on_host(const Wrapper *self, int is_receive)
{
    return !is_receive || device_of(self->refs[RECORDER]) == NULL;
}

/* Record a transfer that ends now. Return -1 if that is left to Python. */
static int record_move(const Wrapper *self, const Moves *moves)
{
    const Message *message = &moves->message;
    int64_t end_ns = message->is_receive && moves->wait_end_ns != NONE ? moves->wait_end_ns : now_ns();
    Ring *ring = (Ring *)self->refs[RING];
    Record *record = is_open(ring, self->refs[RECORDER]) ? next_record(ring, message->kind) : NULL;
    if (record == NULL)
        return -1;
    record->start_ns = message->start_ns;
    record->end_ns = end_ns;
    record->wait_start_ns = moves->wait_end_ns == NONE ? NONE : moves->wait_start_ns;
    record->wait_end_ns = moves->wait_end_ns;
    record->bytes = message->bytes;
    record->step = message->step;
    record->stage = message->stage;
    record->microbatch = message->microbatch;
    record->chunk = 0;
    record->peer = message->peer;
    return 0;
}

/* End the transfer that began as `own`. Return NULL with an exception, or the result. */
static PyObject *end_transfer(const Wrapper *self, unsigned long long own, PyObject *result)
{
    Moves *moves = (Moves *)self->refs[MOVES];
    fetch_moves(moves);
    fetch((Ring *)self->refs[RING], self->refs[RECORDER]);
    if (moves->order != own)
        return result; /* forgotten meanwhile */
    if (moves->is_moving && (result == NULL || record_move(self, moves) == 0)) {
        moves->is_moving = 0;
        return result;
    }
    if (give(moves) < 0)
        Py_CLEAR(result);
    PyObject *given = moves->given;
    moves->given = NULL;
    if (given != NULL && result != NULL)
        return end_in_python(self, given, result);
    if (given != NULL)
        abandon_call(self, given);
    Py_XDECREF(given);
    return result;
}

/* Call an instruction that sends or receives, as `watched_wrapper` does with an `Instruction`. */
PyObject *call_transfer(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    Moves *moves = (Moves *)self->refs[MOVES];
    int is_receive = self->numbers[IS_RECEIVE] != 0;
    if (!is_usual_instruction(self) || moves->is_moving || moves->is_paused || moves->given != NULL ||
        !is_on_host(self, is_receive) || !has_buffer_only(nargsf, names))
        return give_to_general(self, args, nargsf, names);
    Action found = {0};
    PyObject *number = next_place(self, args[0], 0, &found);
    if (number == NULL)
        return leave_to_python(self, args, nargsf, names);
    Py_DECREF(number);
    unsigned long long own = ++moves->order;
    moves->wait_start_ns = moves->wait_end_ns = NONE;
    moves->message = (Message){
        .kind = (uint8_t)found.kind, .is_receive = (uint8_t)is_receive, .stage = found.stage,
        .microbatch = found.microbatch, .peer = NONE, .step = step_of((Ring *)self->refs[RING]), .start_ns = now_ns(),
    };
    moves->is_moving = 1;
    return end_transfer(self, own, pass_to(self->original, args, nargsf, names));
}

/* Return the rank of a stage, a borrowed reference. Return NULL if it is unknown, maybe with an exception. */
static PyObject *rank_of(const Wrapper *self, PyObject *stage)
{
    if (!PyLong_CheckExact(stage))
        return NULL;
    PyObject *rank = PyDict_GetItemWithError(self->refs[RANKS], stage);
    if (rank != NULL || PyErr_Occurred())
        return rank;
    PyObject *done = PyObject_CallMethodObjArgs(self->refs[WATCH], find_rank, stage, NULL);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return PyDict_GetItemWithError(self->refs[RANKS], stage);
}

/* Find how many bytes a tensor has, and the rank at the other end. Return -1 if something is unusual, maybe with an
   exception. */
static int measure(const Wrapper *self, PyObject *tensor, PyObject *stage, int64_t *bytes, int32_t *peer)
{
    PyObject *size = PyObject_GetAttr(tensor, nbytes);
    *bytes = size != NULL && PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : NONE;
    Py_XDECREF(size);
    PyObject *rank = *bytes < 0 ? NULL : rank_of(self, stage);
    return rank != NULL && is_int32(rank, peer) ? 0 : -1;
}

/* Let Python see a tensor that the transfer in progress has moved. Return NULL with an exception, or the result. */
static PyObject *see(const Wrapper *self, PyObject *const *args, PyObject *result)
{
    Moves *moves = (Moves *)self->refs[MOVES];
    if (give(moves) < 0)
        Py_CLEAR(result);
    if (result == NULL || moves->given == NULL)
        return result;
    return end_in_python(self, PyTuple_Pack(MOVED + 1, moves->given, args[0], args[1]), result);
}

/* Call a function that moves a tensor, as `watched_wrapper` does with a `Move`. The tensor is measured before the call:
   what that needs is in the caches until the host has waited. */
PyObject *call_move(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    Moves *moves = (Moves *)self->refs[MOVES];
    fetch_moves(moves);
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    fetch((Ring *)self->refs[RING], self->refs[RECORDER]);
    if (!moves->is_moving || moves->is_paused || get_slot(self->refs[GUARD], slots.is_off) != Py_False ||
        PyVectorcall_NARGS(nargsf) != MOVED || (names != NULL && PyTuple_GET_SIZE(names) > 0) ||
        !is_open((Ring *)self->refs[RING], self->refs[RECORDER]) || !is_on_host(self, moves->message.is_receive))
        return give_to_general(self, args, nargsf, names);
    unsigned long long own = moves->order;
    int64_t bytes;
    int32_t peer;
    int is_measured = measure(self, args[0], args[1], &bytes, &peer) == 0;
    if (PyErr_Occurred() && is_of_training())
        return NULL;
    if (moves->wait_start_ns == NONE)
        moves->wait_start_ns = now_ns();
    PyObject *result = pass_to(self->original, args, nargsf, names);
    if (result == NULL || moves->order != own)
        return result;
    moves->wait_end_ns = now_ns();
    if (!is_measured || !moves->is_moving)
        return see(self, args, result);
    moves->message.bytes += bytes;
    moves->message.peer = peer;
    return result;
}

static PyObject *forget(PyObject *object, PyObject *Py_UNUSED(arg))
{
    Moves *self = (Moves *)object;
    self->is_moving = self->is_paused = 0;
    self->order++;
    Py_CLEAR(self->given);
    Py_RETURN_NONE;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Moves *)object)->take_over);
    Py_VISIT(((Moves *)object)->given);
    Py_VISIT(((Moves *)object)->engine);
    return 0;
}

static int clear(PyObject *object)
{
    Py_CLEAR(((Moves *)object)->take_over);
    Py_CLEAR(((Moves *)object)->given);
    Py_CLEAR(((Moves *)object)->engine);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"clear", forget, METH_NOARGS, "Forget the transfer in progress."},
    {NULL},
};

static PyMemberDef members[] = {
    {"is_known", T_BOOL, offsetof(Moves, is_known), 0, "Whether all instructions of the engine are observed."},
    {"is_paused", T_BOOL, offsetof(Moves, is_paused), 0, "Whether what is moved now is no part of the transfer."},
    {"engine", T_OBJECT, offsetof(Moves, engine), 0, "The engine whose batch is running, None without one."},
    {"stage", T_INT, offsetof(Moves, stages[0]), 0, "The stage of the engine."},
    {"mirror", T_INT, offsetof(Moves, stages[1]), 0, "That of its phase 1."},
    {"take_over", T_OBJECT, offsetof(Moves, take_over), 0, "Returns the Transfer that Python follows from now on."},
    {NULL},
};

PyTypeObject Moves_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Moves",
    .tp_doc = "Moves(): the transfer of DeepSpeed's pipeline engine that is in progress.",
    .tp_basicsize = sizeof(Moves),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = deallocate,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_members = members,
};
