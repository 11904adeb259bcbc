/* Events of CUDA, through the functions of its driver; torch takes half as much time again to record one, and twice as
   much to read it.

   `Event` has what the recorder uses of torch.cuda.Event. All functions take CUDA's handles, which are addresses, and
   return 0 or an error; torch and the driver use the same handles. */

#include "plain.h"

#include <unistd.h>

#define NOT_READY 600 /* CUDA_ERROR_NOT_READY */

Driver driver;

static PyObject *cuda_event;

int prepare_events(void)
{
    cuda_event = PyUnicode_InternFromString("cuda_event");
    return cuda_event == NULL || PyType_Ready(&Event_Type) < 0 ? -1 : 0;
}

/* Use functions at these addresses, in the order of `Driver`. */
PyObject *use_driver(PyObject *Py_UNUSED(module), PyObject *addresses)
{
    void *found[sizeof driver / sizeof(void *)];
    Py_ssize_t count = (Py_ssize_t)(sizeof found / sizeof *found);
    if (!PyTuple_Check(addresses) || PyTuple_GET_SIZE(addresses) != count)
        return PyErr_Format(PyExc_ValueError, "a tuple of %zd addresses", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        found[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
        if (found[i] == NULL)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a function has no address");
    }
    memcpy(&driver, found, sizeof driver);
    Py_RETURN_NONE;
}

/* Raise RuntimeError with the text of the driver. */
static PyObject *fail(int error)
{
    const char *text = NULL;
    if (driver.describe(error, &text) != 0 || text == NULL)
        text = "unknown error";
    return PyErr_Format(PyExc_RuntimeError, "CUDA error %d: %s", error, text);
}

int is_done(const Event *event)
{
    int error = driver.query(event->handle);
    if (error != 0 && error != NOT_READY) {
        fail(error);
        return -1;
    }
    return error == 0;
}

/* Find the time between two events. Return whether both have happened, -1 with an exception. */
int find_elapsed(const Event *start, const Event *end, int64_t *elapsed_ns)
{
    float elapsed_ms = 0;
    int error = driver.elapsed(&elapsed_ms, start->handle, end->handle);
    if (error != 0 && error != NOT_READY) {
        fail(error);
        return -1;
    }
    *elapsed_ns = llrint((double)elapsed_ms * 1e6);
    return error == 0;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, names, ":Event", keywords))
        return NULL;
    if (driver.create == NULL)
        return PyErr_Format(PyExc_RuntimeError, "the functions of the driver are not known");
    Event *event = (Event *)type->tp_alloc(type, 0);
    if (event == NULL)
        return NULL;
    int error = driver.create(&event->handle, 0);
    if (error != 0) {
        event->handle = NULL;
        Py_DECREF(event);
        return fail(error);
    }
    event->process = getpid();
    return (PyObject *)event;
}

/* In a forked child, functions of the driver hang or fail, so the event is left alone. */
static void deallocate(PyObject *object)
{
    Event *event = (Event *)object;
    if (event->handle != NULL && event->process == getpid())
        driver.destroy(event->handle);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *record(PyObject *object, PyObject *stream)
{
    void *handle = PyLong_AsVoidPtr(stream);
    if (handle == NULL && PyErr_Occurred())
        return NULL;
    int error = driver.record(((Event *)object)->handle, handle);
    if (error != 0)
        return fail(error);
    Py_RETURN_NONE;
}

static PyObject *query(PyObject *object, PyObject *Py_UNUSED(arg))
{
    int done = is_done((Event *)object);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* The other event may be one of torch. */
static PyObject *elapsed_time(PyObject *object, PyObject *other)
{
    void *handle;
    if (Py_IS_TYPE(other, &Event_Type)) {
        handle = ((Event *)other)->handle;
    } else {
        PyObject *number = PyObject_GetAttr(other, cuda_event);
        handle = number == NULL ? NULL : PyLong_AsVoidPtr(number);
        Py_XDECREF(number);
        if (PyErr_Occurred())
            return NULL;
    }
    float elapsed_ms = 0;
    int error = driver.elapsed(&elapsed_ms, ((Event *)object)->handle, handle);
    return error != 0 ? fail(error) : PyFloat_FromDouble(elapsed_ms);
}

static PyMethodDef methods[] = {
    {"record", record, METH_O, "Record the event on a stream, which is given by its handle."},
    {"query", query, METH_NOARGS, "Return whether the event has happened."},
    {"elapsed_time", elapsed_time, METH_O, "Return the milliseconds from this event to another one."},
    {NULL},
};

PyTypeObject Event_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Event",
    .tp_doc = "Event(): an event with timing of the device that is current for this thread.",
    .tp_basicsize = sizeof(Event),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make,
    .tp_dealloc = deallocate,
    .tp_methods = methods,
};
