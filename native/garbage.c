/* The times of garbage collections; see record/garbage.py.

   Python ignores exceptions of the functions in gc.callbacks, and runs handlers of signals between two instructions of
   Python. A signal that arrives during a collection would therefore be handled in a callback that is written in Python,
   and a KeyboardInterrupt would be lost. This callback has no instructions of Python. */

#include "plain.h"

#define MOST_KEPT 4096

typedef struct {
    int64_t start_ns, end_ns;
    int32_t generation, step;
} Collection;

typedef struct {
    PyObject_HEAD
    PyObject *recorder;
    long long shortest_ns;
    int64_t start_ns;
    Py_ssize_t first, count;
    Collection kept[MOST_KEPT];
} Collections;

/* Keep a collection that ends now, if it was long and the recorder records a step: imports allocate much, too. */
static void keep(Collections *self, PyObject *facts)
{
    Collection found = {.start_ns = self->start_ns, .end_ns = now_ns()};
    if (self->start_ns == 0 || found.end_ns - found.start_ns < self->shortest_ns ||
        get_slot(self->recorder, slots.enabled) != Py_True)
        return;
    PyObject *step = get_slot(self->recorder, slots.step);
    if (step == NULL || !is_int32(step, &found.step) || found.step == NONE)
        return;
    PyObject *generation = PyDict_Check(facts) ? PyDict_GetItemString(facts, "generation") : NULL;
    if (generation == NULL || !is_int32(generation, &found.generation))
        found.generation = 0;
    self->kept[(self->first + self->count) % MOST_KEPT] = found;
    if (self->count < MOST_KEPT)
        self->count++;
    else
        self->first = (self->first + 1) % MOST_KEPT;
}

/* Note the begin or the end of a collection, as gc.callbacks are called. */
static PyObject *note(PyObject *object, PyObject *args, PyObject *Py_UNUSED(named))
{
    Collections *self = (Collections *)object;
    PyObject *phase, *facts;
    if (!PyArg_ParseTuple(args, "UO:Collections", &phase, &facts))
        return NULL;
    if (PyUnicode_CompareWithASCIIString(phase, "start") == 0)
        self->start_ns = now_ns();
    else
        keep(self, facts);
    Py_RETURN_NONE;
}


/* Return and forget what is kept. Making the tuples may itself begin a collection. */
static PyObject *take(PyObject *object, PyObject *Py_UNUSED(arg))
{
    Collections *self = (Collections *)object;
    PyObject *taken = PyList_New(0);
    while (taken != NULL && self->count > 0) {
        Collection next = self->kept[self->first];
        self->first = (self->first + 1) % MOST_KEPT;
        self->count--;
        PyObject *one = Py_BuildValue("LLii", (long long)next.start_ns, (long long)next.end_ns, next.generation,
                                      next.step);
        if (one == NULL || PyList_Append(taken, one) < 0)
            Py_CLEAR(taken);
        Py_XDECREF(one);
    }
    return taken;
}

static Py_ssize_t count_kept(PyObject *object)
{
    return ((Collections *)object)->count;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *recorder;
    long long shortest_ns;
    if (!PyArg_ParseTuple(args, "OL:Collections", &recorder, &shortest_ns))
        return NULL;
    Collections *self = (Collections *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->recorder = Py_NewRef(recorder);
        self->shortest_ns = shortest_ns;
    }
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Collections *)object)->recorder);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    Py_CLEAR(((Collections *)object)->recorder);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS, "Return and forget all collections: start, end, generation and step of each."},
    {NULL},
};

static PySequenceMethods sequence = {.sq_length = count_kept};

PyTypeObject Collections_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Collections",
    .tp_doc = "Collections(recorder, shortest_ns): a callback of the garbage collector that keeps the times of long "
              "collections.",
    .tp_basicsize = sizeof(Collections),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = make,
    .tp_call = note,
    .tp_dealloc = deallocate,
    .tp_traverse = traverse,
    .tp_as_sequence = &sequence,
    .tp_methods = methods,
};
