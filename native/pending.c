/* The messages that are under way: from the creation of an operation to its issue, and from there to the wait for its
   handle. They are found by comparing addresses in a row: there are few at a time, or the first one is wanted.

   Whatever is unusual is done in Python. `give_to_python` calls `take_over` before that, which moves all messages into
   the dictionaries of Messages (record/frameworks/torch_messages.py). */

#include "plain.h"

static int place_of(void *const *addresses, int count, const void *address)
{
    for (int place = count - 1; place >= 0; place--) {
        if (addresses[place] == address)
            return place;
    }
    return -1;
}

/* Return the message of an operation that was created, or NULL. */
Message *find_created(Pending *pending, PyObject *operation)
{
    int place = place_of(pending->operations, pending->created_count, operation);
    return place < 0 ? NULL : &pending->created[place];
}

static Message *find_in(const Issued *issued, const void *handle)
{
    for (int place = issued->first; place < issued->end; place++) {
        if (issued->handles[place] == handle)
            return &issued->messages[place];
    }
    return NULL;
}

/* Return the first message of a handle, or NULL. Sends are usually waited for in the order of their issue. */
Message *find_issued(Pending *pending, PyObject *handle)
{
    Message *found = find_in(&pending->receives_issued, handle);
    return found != NULL ? found : find_in(&pending->sends_issued, handle);
}

/* Add a message, and take its reference. Return -1 if there is no place. An operation that does not exist any more may
   have had the same address. */
int add_created(Pending *pending, PyObject *operation, Message message)
{
    Message *before = find_created(pending, operation);
    if (before != NULL)
        remove_created(pending, before);
    if (pending->created_count == MOST_CREATED)
        return -1;
    pending->operations[pending->created_count] = operation;
    pending->created[pending->created_count++] = message;
    return 0;
}

/* Move the messages to the beginning. */
static void close_gaps(Issued *issued)
{
    int kept = 0;
    for (int place = issued->first; place < issued->end; place++) {
        if (issued->handles[place] == NULL)
            continue;
        issued->handles[kept] = issued->handles[place];
        issued->messages[kept++] = issued->messages[place];
    }
    issued->first = 0;
    issued->end = kept;
}

int add_issued(Pending *pending, PyObject *handle, Message message)
{
    Issued *issued = message.is_receive ? &pending->receives_issued : &pending->sends_issued;
    if (issued->count == issued->most)
        return -1;
    if (issued->end == issued->most)
        close_gaps(issued);
    issued->handles[issued->end] = handle;
    issued->messages[issued->end++] = message;
    issued->count++;
    return 0;
}

void remove_created(Pending *pending, Message *message)
{
    PyObject *reference = message->reference;
    int last = --pending->created_count;
    pending->operations[message - pending->created] = pending->operations[last];
    *message = pending->created[last];
    Py_XDECREF(reference);
}

void remove_issued(Pending *pending, Message *message)
{
    PyObject *reference = message->reference;
    Issued *issued = message->is_receive ? &pending->receives_issued : &pending->sends_issued;
    issued->handles[message - issued->messages] = NULL;
    if (--issued->count == 0)
        issued->first = issued->end = 0;
    while (issued->first < issued->end && issued->handles[issued->first] == NULL)
        issued->first++;
    Py_XDECREF(reference);
}

/* Return whether the data that an action of this kind uses has been received without a wait so far. */
int is_awaited(const Pending *pending, uint8_t action, int32_t stage, int32_t microbatch)
{
    const Issued *issued = &pending->receives_issued;
    for (int place = issued->first; place < issued->end; place++) {
        const Message *message = &issued->messages[place];
        if (issued->handles[place] != NULL && message->kind == pending->receive_of[action] && message->stage == stage &&
            message->microbatch == microbatch)
            return 1;
    }
    return 0;
}

/* Return whether a weak reference is to this object, and not to one that had the same address; no for NULL. */
int is_reference_to(PyObject *reference, PyObject *object)
{
    if (reference == NULL)
        return 0;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *found = NULL;
    if (PyWeakref_GetRef(reference, &found) < 0)
        PyErr_Clear();
    Py_XDECREF(found);
    return found == object;
#else
    return PyWeakref_GET_OBJECT(reference) == object;
#endif
}

/* Return the tuple that Python has of a message: kind, stage, micro-batch, rank at the other end, bytes. */
PyObject *described(const Message *message)
{
    return Py_BuildValue("(iiiiL)", message->kind, message->stage, message->microbatch, message->peer,
                         (long long)message->bytes);
}

static Py_ssize_t length(PyObject *object)
{
    const Pending *pending = (Pending *)object;
    return pending->created_count + pending->receives_issued.count + pending->sends_issued.count;
}

/* Let Python take over a number of messages. What cannot be moved, because memory has run out, is lost. */
void let_take_over(PyObject *take_over, int count)
{
    if (count == 0 || take_over == NULL)
        return;
    PyObject *done = PyObject_CallNoArgs(take_over);
    if (done == NULL)
        PyErr_Clear();
    Py_XDECREF(done);
}

/* Move all messages to Python. */
void give_to_python(Pending *pending)
{
    let_take_over(pending->take_over, (int)length((PyObject *)pending));
}

/* Append the tuple of an address, a weak reference and the message, and of its issue if it has a handle. */
static int append(PyObject *list, void *address, const Message *message, int is_issued)
{
    PyObject *one;
    if (is_issued)
        one = Py_BuildValue("(NONiLL)", PyLong_FromVoidPtr(address), message->reference, described(message),
                            message->step, (long long)message->start_ns, (long long)message->end_ns);
    else
        one = Py_BuildValue("(NON)", PyLong_FromVoidPtr(address), message->reference, described(message));
    int done = one == NULL ? -1 : PyList_Append(list, one);
    Py_XDECREF(one);
    return done;
}

static void forget(Pending *pending)
{
    while (pending->created_count > 0)
        remove_created(pending, &pending->created[pending->created_count - 1]);
    Issued *all[] = {&pending->receives_issued, &pending->sends_issued};
    for (int i = 0; i < 2; i++) {
        while (all[i]->count > 0)
            remove_issued(pending, &all[i]->messages[all[i]->first]);
    }
}

static PyObject *take(PyObject *object, PyObject *Py_UNUSED(arg))
{
    Pending *pending = (Pending *)object;
    PyObject *created = PyList_New(0), *issued = PyList_New(0);
    int done = created == NULL || issued == NULL ? -1 : 0;
    for (int i = 0; done == 0 && i < pending->created_count; i++)
        done = append(created, pending->operations[i], &pending->created[i], 0);
    const Issued *all[] = {&pending->receives_issued, &pending->sends_issued};
    for (int i = 0; i < 2; i++) {
        for (int place = all[i]->first; done == 0 && place < all[i]->end; place++) {
            if (all[i]->handles[place] != NULL)
                done = append(issued, all[i]->handles[place], &all[i]->messages[place], 1);
        }
    }
    if (done == 0) {
        forget(pending);
        return Py_BuildValue("(NN)", created, issued);
    }
    Py_XDECREF(created);
    Py_XDECREF(issued);
    return NULL;
}

static PyObject *clear_messages(PyObject *object, PyObject *Py_UNUSED(arg))
{
    forget((Pending *)object);
    Py_RETURN_NONE;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Pending *pending = (Pending *)object;
    Py_VISIT(pending->recorder);
    Py_VISIT(pending->take_over);
    Py_VISIT(pending->last_receive);
    Py_VISIT(pending->known_class);
    return 0;
}

static int clear(PyObject *object)
{
    Pending *pending = (Pending *)object;
    forget(pending);
    Py_CLEAR(pending->take_over);
    Py_CLEAR(pending->last_receive);
    Py_CLEAR(pending->known_class);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_XDECREF(((Pending *)object)->recorder);
    Py_XDECREF((PyObject *)((Pending *)object)->ring);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    PyObject *recorder, *ring;
    Py_buffer receive_of;
    if (!PyArg_ParseTuple(args, "OO!y*:Pending", &recorder, &Ring_Type, &ring, &receive_of))
        return NULL;
    Pending *pending = NULL;
    if (receive_of.len == sizeof pending->receive_of)
        pending = (Pending *)type->tp_alloc(type, 0);
    else
        PyErr_SetString(PyExc_ValueError, "one kind of receive, or 0, for each kind of action");
    if (pending != NULL) {
        memcpy(pending->receive_of, receive_of.buf, sizeof pending->receive_of);
        for (size_t kind = 0; kind < sizeof pending->receive_of; kind++)
            pending->is_receive[pending->receive_of[kind]] = pending->receive_of[kind] != 0;
        pending->receives_issued = (Issued){
            .most = MOST_RECEIVES, .handles = pending->handles_of_receives, .messages = pending->issued_receives};
        pending->sends_issued = (Issued){
            .most = MOST_SENDS, .handles = pending->handles_of_sends, .messages = pending->issued_sends};
        pending->recorder = Py_NewRef(recorder);
        pending->ring = (Ring *)Py_NewRef(ring);
    }
    PyBuffer_Release(&receive_of);
    return (PyObject *)pending;
}

static PyObject *get_last_receive(PyObject *object, void *Py_UNUSED(closure))
{
    Pending *pending = (Pending *)object;
    if (pending->last_receive != NULL)
        return Py_NewRef(pending->last_receive);
    return PyLong_FromLongLong(pending->last_receive_ns);
}

static int set_last_receive(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    Py_XSETREF(((Pending *)object)->last_receive, Py_XNewRef(value));
    return 0;
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS,
     "Return and forget all messages: a list of those created (address, reference, message), and one of those issued, "
     "which have step, start and end of their issue besides."},
    {"clear", clear_messages, METH_NOARGS, "Forget all messages."},
    {NULL},
};

static PyMemberDef members[] = {
    {"receives", T_LONGLONG, offsetof(Pending, receives), 0, "How many receives were waited for."},
    {"take_over", T_OBJECT, offsetof(Pending, take_over), 0, "Called before anything is done with messages in Python."},
    {"known_class", T_OBJECT, offsetof(Pending, known_class), 0, "A class of handles whose waits are observed."},
    {NULL},
};

static PyGetSetDef attributes[] = {
    {"last_receive", get_last_receive, set_last_receive, "The moment at which the last of them ended."},
    {NULL},
};

static PySequenceMethods sequence = {.sq_length = length};

PyTypeObject Pending_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Pending",
    .tp_doc = "Pending(recorder, ring, receive_of): the messages under way; `receive_of` has, for each kind of action, "
              "the kind of the receive whose data it uses, or 0.",
    .tp_basicsize = sizeof(Pending),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = make,
    .tp_dealloc = deallocate,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = attributes,
    .tp_as_sequence = &sequence,
};
