/* The calls that create, issue and wait for the messages of a pipeline; see record/frameworks/torch_messages.py. */

#include "plain.h"

static PyObject *stage_index, *peer, *tensor, *nbytes;

int prepare_messages(void)
{
    stage_index = PyUnicode_InternFromString("stage_index");
    peer = PyUnicode_InternFromString("peer");
    tensor = PyUnicode_InternFromString("tensor");
    nbytes = PyUnicode_InternFromString("nbytes");
    return stage_index && peer && tensor && nbytes ? 0 : -1;
}

static int is_off(PyObject *guard)
{
    return get_slot(guard, slots.is_off) != Py_False;
}

/* The creation of operations by a stage for one micro-batch: `Creation` in record/hooks.py. */

enum { RECORDER, GUARD, PENDING, SEE };
enum { MICROBATCH_AT, KIND };

/* Read what a message has from its operation. Return -1 if that cannot be done here, maybe with an exception. */
static int read_operation(PyObject *operation, Message *message)
{
    PyObject *other = PyObject_GetAttr(operation, peer);
    int done = other != NULL && is_int32(other, &message->peer) ? 0 : -1;
    Py_XDECREF(other);
    PyObject *data = done < 0 ? NULL : PyObject_GetAttr(operation, tensor);
    PyObject *size = data == NULL ? NULL : PyObject_GetAttr(data, nbytes);
    Py_XDECREF(data);
    if (size == NULL || !PyLong_Check(size)) {
        Py_XDECREF(size);
        return -1;
    }
    message->bytes = PyLong_AsLongLong(size);
    Py_DECREF(size);
    if (message->bytes == -1 && PyErr_Occurred())
        return -1;
    message->reference = PyWeakref_NewRef(operation, NULL);
    return message->reference == NULL ? -1 : 0;
}

static int note_operations(const Wrapper *self, PyObject *const *args, PyObject *operations)
{
    Pending *pending = (Pending *)self->refs[PENDING];
    uint8_t kind = (uint8_t)self->numbers[KIND];
    Message message = {.kind = kind, .is_receive = pending->is_receive[kind]};
    PyObject *stage = PyObject_GetAttr(args[0], stage_index);
    int done = stage != NULL && is_int32(stage, &message.stage) &&
                       is_int32(args[self->numbers[MICROBATCH_AT]], &message.microbatch)
                   ? 0
                   : -1;
    Py_XDECREF(stage);
    for (Py_ssize_t i = 0; done == 0 && i < PyList_GET_SIZE(operations); i++) {
        PyObject *operation = Py_NewRef(PyList_GET_ITEM(operations, i));
        done = read_operation(operation, &message);
        if (done == 0 && add_created(pending, operation, message) < 0) {
            Py_DECREF(message.reference);
            done = -1;
        }
        Py_DECREF(operation);
    }
    return done;
}

PyObject *keywords_of(PyObject *const *values, PyObject *names)
{
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(found, PyTuple_GET_ITEM(names, i), values[i]) < 0)
            Py_CLEAR(found);
    }
    return found;
}

PyObject *positional(PyObject *const *args, Py_ssize_t count)
{
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++)
        PyTuple_SET_ITEM(found, i, Py_NewRef(args[i]));
    return found;
}

/* Let the function in Python see the result of a call. Return NULL with an exception, or the result. */
static PyObject *seen(const Wrapper *self, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject *result)
{
    give_to_python((Pending *)self->refs[PENDING]);
    PyObject *given = positional(args, count), *named = keywords_of(args + count, names), *done = NULL;
    if (given != NULL && named != NULL)
        done = PyObject_CallFunctionObjArgs(self->refs[SEE], given, named, result, NULL);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return unless_raised(result, done);
}

PyObject *call_creation(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *result = pass_to(self->original, args, nargsf, names);
    if (result == NULL || (PyList_CheckExact(result) && PyList_GET_SIZE(result) == 0) ||
        get_slot(self->refs[RECORDER], slots.enabled) == Py_False)
        return result;
    int is_usual = PyList_CheckExact(result) && count > self->numbers[MICROBATCH_AT] && !is_off(self->refs[GUARD]) &&
                   is_open(((Pending *)self->refs[PENDING])->ring, self->refs[RECORDER]);
    if (is_usual && note_operations(self, args, result) == 0)
        return result;
    if (PyErr_Occurred() && is_of_training()) {
        Py_DECREF(result);
        return NULL;
    }
    return seen(self, args, count, names, result);
}

/* The issue of operations, which returns their handles: `Issues` in record/hooks.py. */

enum { I_RECORDER, I_GUARD, I_PENDING, I_CREATED, I_CLASSES, I_ISSUED };

/* Return whether the waits for a handle are observed, -1 with an exception. Its class is usually that of the
 * handle before. */
int is_in_classes(PyObject *classes, PyObject *handle, PyObject **known_class)
{
    PyObject *class = (PyObject *)Py_TYPE(handle);
    if (class == *known_class)
        return 1;
    int is_known = PySet_Contains(classes, class);
    if (is_known == 1)
        Py_XSETREF(*known_class, Py_NewRef(class));
    return is_known;
}

/* Note the handle of an operation. Return -1 if that is left to Python, maybe with an exception. The handle of an
   earlier message that was never waited for may have had the same address. */
static int note_handle(const Wrapper *self, PyObject *operation, PyObject *handle, const Message *issue)
{
    Pending *pending = (Pending *)self->refs[I_PENDING];
    Message *created = find_created(pending, operation);
    if (created == NULL || !is_reference_to(created->reference, operation))
        return PyDict_GET_SIZE(self->refs[I_CREATED]) == 0 ? 0 : -1; /* taken by an inner call, or none of a stage */
    if (is_in_classes(self->refs[I_CLASSES], handle, &pending->known_class) <= 0)
        return -1;
    PyObject *reference = PyWeakref_NewRef(handle, NULL);
    created = find_created(pending, operation); /* again: garbage that was collected meanwhile may have had messages */
    if (reference == NULL || created == NULL) {
        Py_XDECREF(reference);
        return -1;
    }
    Message message = *created;
    message.step = issue->step;
    message.start_ns = issue->start_ns;
    message.end_ns = issue->end_ns;
    message.reference = reference;
    if (add_issued(pending, handle, message) < 0) {
        Py_DECREF(reference);
        return -1;
    }
    remove_created(pending, created);
    return 0;
}

/* Note one handle of each operation, or a single one of all of them (NCCL). Return -1 if the operations that have not
   been noted yet are left to Python. */
static int note_handles(const Wrapper *self, PyObject *operations, PyObject *handles, int64_t start_ns)
{
    Pending *pending = (Pending *)self->refs[I_PENDING];
    Py_ssize_t count = PyTuple_GET_SIZE(operations);
    int is_single = PyList_CheckExact(handles) && PyList_GET_SIZE(handles) == 1 && count <= MOST_TOGETHER;
    if (!PyList_CheckExact(handles) || (PyList_GET_SIZE(handles) != count && !is_single) ||
        !is_open(pending->ring, self->refs[I_RECORDER]))
        return -1;
    Message issue = {.step = step_of(pending->ring), .start_ns = start_ns, .end_ns = now_ns()};
    int done = 0;
    for (Py_ssize_t i = 0; done == 0 && i < count && (is_single || i < PyList_GET_SIZE(handles)); i++) {
        PyObject *handle = Py_NewRef(PyList_GET_ITEM(handles, is_single ? 0 : i));
        int is_known = (i == 0 || !is_single) && find_issued(pending, handle) != NULL;
        done = is_known ? -1 : note_handle(self, PyTuple_GET_ITEM(operations, i), handle, &issue);
        Py_DECREF(handle);
    }
    PyErr_Clear();
    return done;
}

static PyObject *issue(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names, PyObject *operations)
{
    int64_t start_ns = now_ns();
    PyObject *result = pass_to(self->original, args, nargsf, names);
    if (result == NULL || note_handles(self, operations, result, start_ns) == 0)
        return result;
    give_to_python((Pending *)self->refs[I_PENDING]);
    PyObject *start = PyLong_FromLongLong(start_ns), *done = NULL;
    if (start != NULL)
        done = PyObject_CallFunctionObjArgs(self->refs[I_ISSUED], operations, start, result, NULL);
    Py_XDECREF(start);
    return unless_raised(result, done);
}

PyObject *call_issue(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *given = PyVectorcall_NARGS(nargsf) > 0 ? args[0] : NULL;
    if (given != NULL && PyList_CheckExact(given) && PyList_GET_SIZE(given) == 0)
        return pass_to(self->original, args, nargsf, names);
    Pending *pending = (Pending *)self->refs[I_PENDING];
    if (given == NULL || !PyList_CheckExact(given) || is_off(self->refs[I_GUARD]) ||
        !is_open(pending->ring, self->refs[I_RECORDER])) {
        give_to_python(pending);
        return pass_to(self->general, args, nargsf, names);
    }
    PyObject *operations = PyList_AsTuple(given); /* the function may take them out of their list */
    if (operations == NULL)
        return NULL;
    PyObject *result = issue(self, args, nargsf, names, operations);
    Py_DECREF(operations);
    return result;
}
