/* The messages of Megatron-core that are under way: from the issue of an operation to the end of the wait for its
   handle, and those that were received to the action that takes the tensor. See record/frameworks/megatron_messages.py.

   There are few at a time, so they are found by comparing addresses in a row, and recognized by weak references.
   Whatever is unusual is done in Python: `give_transfers` calls `take_over` before that, which moves all of them into
   the dictionaries of Messages. */

#include "plain.h"

/* Ask for the memory of the transfers, all at once; see `fetch`. */
void fetch_transfers(const Transfers *self)
{
    __builtin_prefetch(&self->count, 1);
    __builtin_prefetch(&self->ring, 1);
    __builtin_prefetch(self->handles, 1);
    __builtin_prefetch(self->tensors, 1);
    for (size_t line = 0; line < 3 * sizeof *self->transfers; line += 64)
        __builtin_prefetch((const char *)self->transfers + line, 1);
}

/* Return the transfer of a handle that is waited for, or NULL. */
Transfer *find_handle(Transfers *self, PyObject *handle)
{
    for (int place = self->count - 1; place >= 0; place--) {
        if (self->handles[place] == handle && is_reference_to(self->transfers[place].message.reference, handle))
            return &self->transfers[place];
    }
    return NULL;
}

/* Return the first transfer that brings a tensor, or NULL. */
Transfer *find_tensor(Transfers *self, PyObject *tensor)
{
    for (int place = 0; place < self->count; place++) {
        if (self->tensors[place] == tensor && is_reference_to(self->transfers[place].tensor, tensor))
            return &self->transfers[place];
    }
    return NULL;
}

/* Add a transfer, and take its references. Return -1 if there is no place. */
int add_transfer(Transfers *self, PyObject *handle, PyObject *tensor, Transfer transfer)
{
    if (self->count == MOST_TRANSFERS)
        return -1;
    self->handles[self->count] = handle;
    self->tensors[self->count] = tensor;
    self->transfers[self->count++] = transfer;
    return 0;
}

/* Drop the references of a transfer, whose moments have been recorded or taken over. */
void drop_transfer(Transfer transfer)
{
    Py_XDECREF(transfer.message.reference);
    Py_XDECREF(transfer.tensor);
}

/* Remove a transfer, and return it with its references. The address of its tensor is left in `tensor`. */
Transfer remove_transfer(Transfers *self, Transfer *transfer, PyObject **tensor)
{
    Transfer found = *transfer;
    Py_ssize_t place = transfer - self->transfers;
    int last = --self->count;
    *tensor = self->tensors[place];
    self->handles[place] = self->handles[last];
    self->tensors[place] = self->tensors[last];
    *transfer = self->transfers[last];
    return found;
}

/* Let Python follow all transfers from now on. */
void give_transfers(Transfers *self)
{
    let_take_over(self->take_over, self->count);
}

/* Record a transfer whose wait has ended and whose action is known. Return -1 if that is left to Python. */
int record_transfer(const Transfers *self, const Transfer *transfer)
{
    const Message *message = &transfer->message;
    Record *record = NULL;
    if (is_open(self->ring, self->recorder))
        record = new_record(self->ring, self->recorder, message->kind);
    if (record == NULL)
        return -1;
    record->start_ns = message->start_ns;
    record->end_ns = message->is_receive ? transfer->wait_end_ns : message->end_ns;
    record->wait_start_ns = transfer->wait_start_ns;
    record->wait_end_ns = transfer->wait_end_ns;
    record->bytes = message->bytes;
    record->step = message->step;
    record->stage = message->stage;
    record->microbatch = message->microbatch;
    record->chunk = (int16_t)transfer->chunk;
    record->peer = message->peer;
    return 0;
}

/* An address and a weak reference, or None twice. */
static PyObject *known_object(PyObject *address, PyObject *reference)
{
    if (reference == NULL)
        return Py_BuildValue("(OO)", Py_None, Py_None);
    return Py_BuildValue("(NO)", PyLong_FromVoidPtr(address), reference);
}

static PyObject *as_tuple(const Transfers *self, const Transfer *transfer, PyObject *handle, PyObject *tensor)
{
    const Message *message = &transfer->message;
    return Py_BuildValue("(NN(iiLi)(iii)(LLNN))", known_object(handle, message->reference),
                         known_object(tensor, transfer->tensor), message->kind, message->peer,
                         (long long)message->bytes, message->step, message->stage, message->microbatch,
                         transfer->chunk, (long long)message->start_ns, (long long)message->end_ns,
                         moment_object(self->recorder, transfer->wait_start_ns),
                         moment_object(self->recorder, transfer->wait_end_ns));
}

/* Take each of them out before anything is allocated: garbage that is collected meanwhile may add others. */
static PyObject *take(PyObject *object, PyObject *Py_UNUSED(arg))
{
    Transfers *self = (Transfers *)object;
    PyObject *found = PyList_New(0);
    while (found != NULL && self->count > 0) {
        PyObject *handle = self->handles[self->count - 1], *tensor;
        Transfer transfer = remove_transfer(self, &self->transfers[self->count - 1], &tensor);
        PyObject *one = as_tuple(self, &transfer, handle, tensor);
        drop_transfer(transfer);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    if (found != NULL && PyList_Reverse(found) < 0)
        Py_CLEAR(found);
    return found;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Transfers *)object)->recorder);
    Py_VISIT(((Transfers *)object)->take_over);
    Py_VISIT(((Transfers *)object)->known_class);
    return 0;
}

static int clear(PyObject *object)
{
    Transfers *self = (Transfers *)object;
    PyObject *tensor;
    while (self->count > 0) {
        Transfer transfer = remove_transfer(self, &self->transfers[self->count - 1], &tensor);
        forget_moment(self->recorder, transfer.wait_start_ns);
        forget_moment(self->recorder, transfer.wait_end_ns);
        drop_transfer(transfer);
    }
    Py_CLEAR(self->take_over);
    Py_CLEAR(self->known_class);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(((Transfers *)object)->recorder);
    Py_XDECREF((PyObject *)((Transfers *)object)->ring);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    PyObject *recorder, *ring;
    if (!PyArg_ParseTuple(args, "OO!:Transfers", &recorder, &Ring_Type, &ring))
        return NULL;
    Transfers *self = (Transfers *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->recorder = Py_NewRef(recorder);
    self->ring = (Ring *)Py_NewRef(ring);
    self->stage = self->chunk = NONE;
    return (PyObject *)self;
}

static Py_ssize_t length(PyObject *object)
{
    return ((Transfers *)object)->count;
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS,
     "Return and forget all transfers, in order: address and reference of a handle, or None; those of a tensor; kind, "
     "rank at the other end, bytes, step; stage, micro-batch, chunk; start and end of the issue, and of the wait."},
    {NULL},
};

static PyMemberDef members[] = {
    {"is_on", T_BOOL, offsetof(Transfers, is_on), 0, "Whether one of the schedules is running that are recorded."},
    {"stage", T_INT, offsetof(Transfers, stage), 0, "The stage of messages without an action."},
    {"chunk", T_INT, offsetof(Transfers, chunk), 0, "The chunk of messages without an action."},
    {"chunks", T_INT, offsetof(Transfers, chunks), 0, "The chunks of this rank, 0 if their stages are unknown."},
    {"rank", T_INT, offsetof(Transfers, rank), 0, "The rank of this process in its pipeline."},
    {"ranks", T_INT, offsetof(Transfers, ranks), 0, "The ranks of its pipeline."},
    {"take_over", T_OBJECT, offsetof(Transfers, take_over), 0, "Called before Python does anything with messages."},
    {"known_class", T_OBJECT, offsetof(Transfers, known_class), 0, "A class of handles whose waits are observed."},
    {NULL},
};

static PySequenceMethods sequence = {.sq_length = length};

PyTypeObject Transfers_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Transfers",
    .tp_doc = "Transfers(recorder, ring): messages under way, and received ones that no action has taken.",
    .tp_basicsize = sizeof(Transfers),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = make,
    .tp_dealloc = deallocate,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_members = members,
    .tp_as_sequence = &sequence,
};
