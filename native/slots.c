/* Attributes and values of Python objects, and the clock. */

#include "plain.h"

#include <time.h>

Slots slots;

static const struct {
    const char *name;
    int owner;
    Py_ssize_t *offset;
} DECLARED[] = {
    {"action", 0, &slots.action},
    {"alone", 0, &slots.alone},
    {"device_records", 0, &slots.device_records},
    {"enabled", 0, &slots.enabled},
    {"has_actions", 0, &slots.has_actions},
    {"is_in_range", 0, &slots.is_in_range},
    {"is_in_run", 0, &slots.is_in_run},
    {"last_pair", 0, &slots.last_pair},
    {"pair", 0, &slots.pair},
    {"plain", 0, &slots.plain},
    {"plain_in_range", 0, &slots.plain_in_range},
    {"_step", 0, &slots.step},
    {"waiting_thread", 0, &slots.waiting_thread},
    {"is_off", 1, &slots.is_off},
    {"forward", 2, &slots.forward},
};

/* Find where the slots of three classes are: those of a recorder, of a guard and of the activities of a process. */
PyObject *use_slots(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *owners[3];
    if (!PyArg_ParseTuple(args, "O!O!O!:use_slots", &PyType_Type, &owners[0], &PyType_Type, &owners[1], &PyType_Type,
                          &owners[2]))
        return NULL;
    for (size_t i = 0; i < sizeof DECLARED / sizeof *DECLARED; i++) {
        PyObject *found = PyObject_GetAttrString(owners[DECLARED[i].owner], DECLARED[i].name);
        if (found == NULL)
            return NULL;
        PyMemberDef *member = Py_IS_TYPE(found, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)found)->d_member : NULL;
        int is_slot = member != NULL && member->type == T_OBJECT_EX;
        if (is_slot)
            *DECLARED[i].offset = member->offset;
        Py_DECREF(found);
        if (!is_slot)
            return PyErr_Format(PyExc_TypeError, "%s is no slot", DECLARED[i].name);
    }
    Py_RETURN_NONE;
}

/* The same as `is_int32` for ints of more than one digit, and other types. */
int is_other_int32(PyObject *object, int32_t *value)
{
    if (!PyLong_Check(object))
        return 0;
    int overflow;
    long long found = PyLong_AsLongLongAndOverflow(object, &overflow);
    *value = (int32_t)found;
    return !overflow && found == *value;
}

/* Return the moment, as time.monotonic_ns does. */
int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}
