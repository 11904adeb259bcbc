/* The type of the wrappers, and the module. */

#include "plain.h"

#define INTERFACE 8

static const struct {
    const char *name;
    vectorcallfunc call;
} CALLS[] = {
    {"action", call_action},   {"creation", call_creation}, {"issue", call_issue},
    {"wait", call_wait},       {"outside_runs", call_outside_runs},
    {"range", call_range},
    {"forward", call_forward}, {"backward", call_backward}, {"exchange", call_exchange},
    {"pass", call_pass},       {"load", call_load},         {"transfer", call_transfer},
    {"move", call_move},
};

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Wrapper *self = (Wrapper *)object;
    Py_VISIT(self->original);
    Py_VISIT(self->general);
    Py_VISIT(self->attributes);
    for (int i = 0; i < MOST_REFS; i++)
        Py_VISIT(self->refs[i]);
    for (int i = 0; i < MOST_SITES; i++)
        Py_VISIT(self->sites[i].names);
    return 0;
}

/* A wrapper that is cleared calls nothing any more: it is called by garbage only. */
static PyObject *call_cleared(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(args), size_t Py_UNUSED(nargsf),
                              PyObject *Py_UNUSED(names))
{
    PyErr_SetString(PyExc_ReferenceError, "the wrapped function does not exist any more");
    return NULL;
}

static int clear(PyObject *object)
{
    Wrapper *self = (Wrapper *)object;
    forget_maker(self);
    self->call = call_cleared;
    Py_CLEAR(self->original);
    Py_CLEAR(self->general);
    Py_CLEAR(self->attributes);
    for (int i = 0; i < MOST_REFS; i++)
        Py_CLEAR(self->refs[i]);
    for (int i = 0; i < MOST_SITES; i++)
        Py_CLEAR(self->sites[i].names);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    if (((Wrapper *)object)->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    clear(object);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *bind(PyObject *self, PyObject *owner, PyObject *Py_UNUSED(type))
{
    return owner == NULL || owner == Py_None ? Py_NewRef(self) : PyMethod_New(self, owner);
}

static PyObject *represent(PyObject *object)
{
    return PyUnicode_FromFormat("<recorded %R>", ((Wrapper *)object)->original);
}

/* A copy is the same function, as with functions in Python, and a pickle has its name. */
static PyObject *reduce(PyObject *object, PyObject *Py_UNUSED(arg))
{
    return PyObject_GetAttrString(object, "__qualname__");
}

static PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, "Return the name of the function, for a pickle."},
    {NULL},
};

static PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};

PyTypeObject Wrapper_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Wrapper",
    .tp_basicsize = sizeof(Wrapper),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Wrapper, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = bind,
    .tp_dictoffset = offsetof(Wrapper, attributes),
    .tp_weaklistoffset = offsetof(Wrapper, weak_references),
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = deallocate,
    .tp_repr = represent,
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_alloc = PyType_GenericAlloc,
    .tp_free = PyObject_GC_Del,
};

/* Set the references and numbers of a wrapper from two tuples. */
static int fill(Wrapper *self, PyObject *refs, PyObject *numbers)
{
    if (PyTuple_GET_SIZE(refs) > MOST_REFS || PyTuple_GET_SIZE(numbers) > MOST_NUMBERS) {
        PyErr_SetString(PyExc_ValueError, "too many references or numbers");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(refs); i++)
        self->refs[i] = Py_NewRef(PyTuple_GET_ITEM(refs, i));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
        self->numbers[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* Return a wrapper: its kind, the original, the wrapper in Python, and what that kind declares in its two enums. */
static PyObject *wrapper(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *kind;
    PyObject *original, *general, *refs, *numbers;
    if (!PyArg_ParseTuple(args, "sOOO!O!:wrapper", &kind, &original, &general, &PyTuple_Type, &refs, &PyTuple_Type,
                          &numbers))
        return NULL;
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        if (strcmp(kind, CALLS[i].name) != 0)
            continue;
        Wrapper *made = (Wrapper *)Wrapper_Type.tp_alloc(&Wrapper_Type, 0);
        if (made == NULL)
            return NULL;
        made->call = CALLS[i].call;
        made->original = Py_NewRef(original);
        made->general = Py_NewRef(general);
        if (fill(made, refs, numbers) < 0)
            Py_CLEAR(made);
        return (PyObject *)made;
    }
    return PyErr_Format(PyExc_ValueError, "unknown kind of wrapper: %s", kind);
}

static PyObject *is_of_signal_handler;

PyObject *take_error(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

int is_of_training(void)
{
    PyObject *error = take_error();
    PyObject *answer = is_of_signal_handler == NULL ? NULL : PyObject_CallOneArg(is_of_signal_handler, error);
    int is_own = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    if (is_own)
        PyErr_Restore(Py_NewRef(Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error));
    Py_XDECREF(error);
    return is_own;
}

PyObject *unless_raised(PyObject *result, PyObject *done)
{
    if (done == NULL)
        Py_CLEAR(result);
    Py_XDECREF(done);
    return result;
}

static PyObject *use_signal_handlers(PyObject *Py_UNUSED(module), PyObject *test)
{
    Py_XSETREF(is_of_signal_handler, Py_NewRef(test));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"wrapper", wrapper, METH_VARARGS, "Return a wrapper: kind, original, wrapper in Python, references, numbers."},
    {"use_maker", use_maker, METH_VARARGS,
     "Let calls of the class of ranges use this wrapper of the kind range; whether methods certainly compute all "
     "actions."},
    {"in_progress", in_progress, METH_O, "Return the calls in progress of a thread, the innermost first."},
    {"use_slots", use_slots, METH_VARARGS, "Find the slots of a recorder, a guard and activities."},
    {"use_driver", use_driver, METH_O,
     "Use functions of CUDA at these addresses: create, record, query, elapsed time, destroy, state of a capture, text "
     "of an error."},
    {"use_signal_handlers", use_signal_handlers, METH_O, "Set the test for exceptions of signal handlers."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stagescope.record._plain",
    .m_doc = "Wrappers of calls that only need to be recorded; see record/compiled.py.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__plain(void)
{
    if (prepare_events() < 0 || prepare_actions() < 0 || prepare_messages() < 0 || prepare_ranges() < 0 ||
        prepare_megatron() < 0 || prepare_exchanges() < 0 || prepare_deepspeed() < 0 || prepare_moves() < 0 || PyType_Ready(&Wrapper_Type) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0 || PyModule_AddType(module, &Ring_Type) < 0 ||
         PyModule_AddType(module, &Pending_Type) < 0 || PyModule_AddType(module, &Transfers_Type) < 0 ||
         PyModule_AddType(module, &Places_Type) < 0 || PyModule_AddType(module, &Event_Type) < 0 ||
         PyModule_AddType(module, &DeviceRecords_Type) < 0 || PyModule_AddType(module, &Moves_Type) < 0 ||
         PyModule_AddType(module, &Collections_Type) < 0))
        Py_CLEAR(module);
    return module;
}
