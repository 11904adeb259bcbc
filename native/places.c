/* Values by the identity of an object, like IdentityMap in record/frameworks/runs.py, for lookups in each call.

   Objects are referenced weakly; those that do not support weak references are kept alive. Entries of objects that no
   longer exist are removed when the table is full, so it has about twice as many entries as there are objects. */

#include "plain.h"

#define FIRST_SIZE 64

/* `reference` is the object itself if it has no weak references, and NULL in an empty place. The stage, micro-batch and
   chunk of a `value` that is a place are beside it, NO_PLACE as its stage if it is none. */
typedef struct {
    PyObject *object, *reference, *value;
    int32_t microbatch;
    int16_t stage, chunk;
} Entry;

#define NO_PLACE INT16_MIN

_Static_assert(sizeof(Entry) == 32, "two fit in a cache line");

struct Places {
    PyObject_HEAD
    Entry *entries;
    size_t size, count; /* the size is a power of two */
};

static int is_alive(const Entry *entry)
{
    return entry->reference == entry->object || is_reference_to(entry->reference, entry->object);
}

/* Return the entry with the address of an object, or the empty one where it would be. */
static Entry *entry_of(Entry *entries, size_t size, const PyObject *object)
{
    size_t place = ((uintptr_t)object >> 4) * 0x9E3779B97F4A7C15u >> 32;
    while (entries[place & (size - 1)].reference != NULL && entries[place & (size - 1)].object != object)
        place++;
    return &entries[place & (size - 1)];
}

static void drop_entries(Entry *entries, size_t size)
{
    for (size_t place = 0; entries != NULL && place < size; place++) {
        Py_XDECREF(entries[place].reference);
        Py_XDECREF(entries[place].value);
    }
    PyMem_Free(entries);
}

static size_t living(const Places *self)
{
    size_t count = 0;
    for (size_t place = 0; place < self->size; place++)
        count += self->entries[place].reference != NULL && is_alive(&self->entries[place]);
    return count;
}

/* Move all objects that exist to a larger table, if most do, or one of the same size. Return -1 with an exception. */
static int move_entries(Places *self)
{
    size_t size = self->size == 0 ? FIRST_SIZE : living(self) * 4 >= self->size ? self->size * 2 : self->size;
    Entry *before = self->entries, *entries = PyMem_Calloc(size, sizeof(Entry));
    size_t before_size = self->size, count = 0;
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t place = 0; place < before_size; place++) {
        if (before[place].reference == NULL || !is_alive(&before[place]))
            continue;
        *entry_of(entries, size, before[place].object) = before[place];
        before[place] = (Entry){0};
        count++;
    }
    self->entries = entries;
    self->size = size;
    self->count = count;
    drop_entries(before, before_size);
    return 0;
}

/* Keep a value for an object, and its numbers if it is a place. Return -1 with an exception. */
int keep_place(Places *self, PyObject *object, PyObject *value, const Action *numbers)
{
    PyObject *reference = PyWeakref_NewRef(object, NULL);
    if (reference == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        reference = Py_NewRef(object);
    }
    if (reference == NULL || (self->count * 2 >= self->size && move_entries(self) < 0)) {
        Py_XDECREF(reference);
        return -1;
    }
    Entry *entry = entry_of(self->entries, self->size, object), before = *entry;
    *entry = (Entry){object, reference, Py_NewRef(value), .stage = NO_PLACE};
    if (numbers != NULL && numbers->stage == (int16_t)numbers->stage && numbers->stage != NO_PLACE &&
        numbers->chunk == (int16_t)numbers->chunk) {
        entry->stage = (int16_t)numbers->stage;
        entry->microbatch = numbers->microbatch;
        entry->chunk = (int16_t)numbers->chunk;
    }
    self->count += before.reference == NULL;
    Py_XDECREF(before.reference);
    Py_XDECREF(before.value);
    return 0;
}

/* Return the entry of an object, or NULL. */
static const Entry *find_entry(const Places *self, PyObject *object)
{
    const Entry *entry = self->size == 0 ? NULL : entry_of(self->entries, self->size, object);
    return entry != NULL && entry->reference != NULL && is_alive(entry) ? entry : NULL;
}

/* Read the numbers of a place. Return whether the value is one. */
static int read_place(PyObject *value, Action *found)
{
    return PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 3 &&
           is_int32(PyTuple_GET_ITEM(value, 0), &found->stage) &&
           is_int32(PyTuple_GET_ITEM(value, 1), &found->microbatch) &&
           is_int32(PyTuple_GET_ITEM(value, 2), &found->chunk) && found->chunk == (int16_t)found->chunk;
}

/* Return the place of the action that made an object, a borrowed reference, and its numbers; NULL if it is unknown. */
PyObject *find_place(const Places *self, PyObject *made, Action *found)
{
    const Entry *entry = find_entry(self, made);
    if (entry == NULL)
        return NULL;
    if (entry->stage == NO_PLACE)
        return read_place(entry->value, found) ? entry->value : NULL;
    found->stage = entry->stage;
    found->microbatch = entry->microbatch;
    found->chunk = entry->chunk;
    return entry->value;
}

static PyObject *keep(PyObject *self, PyObject *args)
{
    PyObject *owner, *value;
    if (!PyArg_ParseTuple(args, "OO:keep", &owner, &value))
        return NULL;
    if (owner != Py_None && keep_place((Places *)self, owner, value, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *find(PyObject *self, PyObject *args)
{
    PyObject *owner, *otherwise = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:find", &owner, &otherwise))
        return NULL;
    const Entry *found = find_entry((Places *)self, owner);
    return Py_NewRef(found == NULL ? otherwise : found->value);
}

static int clear(PyObject *object)
{
    Places *self = (Places *)object;
    Entry *before = self->entries;
    size_t size = self->size;
    self->entries = NULL;
    self->size = self->count = 0;
    drop_entries(before, size);
    return 0;
}

static PyObject *clear_all(PyObject *self, PyObject *Py_UNUSED(arg))
{
    clear(self);
    Py_RETURN_NONE;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    const Places *self = (Places *)object;
    for (size_t place = 0; place < self->size; place++) {
        Py_VISIT(self->entries[place].reference);
        Py_VISIT(self->entries[place].value);
    }
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"keep", keep, METH_VARARGS, "Store a value for an object; does nothing for None."},
    {"find", find, METH_VARARGS, "Return the value of an object, or a default."},
    {"clear", clear_all, METH_NOARGS, "Remove everything."},
    {NULL},
};

PyTypeObject Places_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Places",
    .tp_doc = "Places(): values by the identity of an object, like IdentityMap in record/frameworks/runs.py.",
    .tp_basicsize = sizeof(Places),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = deallocate,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
};
