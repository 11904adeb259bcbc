/* Calls in progress: what the variables of a wrapper in Python show, which have no counterpart here.

   A call takes a place of an array instead of one on the stack, because libraries that switch stacks (greenlet) move
   what is there. An action is referenced by the function that waits for the call. */

#include "plain.h"

#define MOST_CALLS 32

typedef struct {
    int is_used;
    PyObject *action; /* NULL for a wait */
    Message message;
    int64_t start_ns;
    unsigned long thread;
    unsigned long long order;
} CallInProgress;

static CallInProgress calls[MOST_CALLS];
static unsigned long long last_order;

static int enter(PyObject *action, const Message *message, int64_t start_ns)
{
    for (int place = 0; place < MOST_CALLS; place++) {
        CallInProgress *call = &calls[place];
        if (call->is_used)
            continue;
        call->is_used = 1;
        call->action = action;
        if (message != NULL)
            call->message = *message;
        call->start_ns = start_ns;
        call->thread = this_thread();
        call->order = ++last_order;
        return place;
    }
    return -1;
}

/* Return the place of a call, -1 if there is none; that call is not shown. */
int enter_action(PyObject *action, int64_t start_ns)
{
    return enter(action, NULL, start_ns);
}

int enter_wait(const Message *message, int64_t start_ns)
{
    return enter(NULL, message, start_ns);
}

void leave_call(int place)
{
    if (place >= 0)
        calls[place].is_used = 0;
}

static PyObject *description(const CallInProgress *call)
{
    if (call->action != NULL)
        return Py_BuildValue("(OOL)", call->action, Py_None, (long long)call->start_ns);
    return Py_BuildValue("(NLL)", described(&call->message), (long long)call->message.start_ns,
                         (long long)call->start_ns);
}

/* Return the calls of a thread, the innermost first: an action or a message, the start of the issue of a message that
   is waited for, None for an action, and the start of the call. */
PyObject *in_progress(PyObject *Py_UNUSED(module), PyObject *thread)
{
    unsigned long number = PyLong_AsUnsignedLongMask(thread);
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = PyList_New(0);
    unsigned long long before = last_order + 1;
    while (found != NULL) {
        const CallInProgress *next = NULL;
        for (int place = 0; place < MOST_CALLS; place++) {
            const CallInProgress *call = &calls[place];
            int is_own = call->is_used && call->thread == number && call->order < before;
            if (is_own && (next == NULL || call->order > next->order))
                next = call;
        }
        if (next == NULL)
            break;
        before = next->order;
        PyObject *one = description(next);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}
