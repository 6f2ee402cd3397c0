/* Python's small objects in huge pages.
 *
 * What is guaranteed: a huge page is given back when the last of its pieces is. An arena that Python had
 * before is given back as Python would give it back.
 *
 * A worker's state is millions of small objects, met in random order. The processor remembers where some
 * hundreds of pages are, and has to look up the others; in a virtual machine, each look is two. With pages
 * of 4 kB it remembers a few megabytes, with pages of 2 MB gigabytes. Linux gives huge pages to whoever
 * asks for them, and Python does not ask.
 *
 * Python serves all objects of up to 512 bytes from arenas, and lets others provide these
 * (`PyObject_SetArenaAllocator`). The arenas here are pieces of huge pages. Python calls the allocator with
 * its lock held. The allocator is that of the whole process, for as long as the process lives; all that it
 * knows is in the one `Arenas` that it was installed with.
 */

#include "headers/arguments.h"
#include <stdint.h>
#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(MADV_HUGEPAGE)

#define PAGE ((size_t)2 << 20)
#define PIECES_MAX 32

/* A huge page, and which of its pieces are in use. */
typedef struct {
    char *base;
    uint32_t used;
} Page;

typedef struct {
    Page *pages;
    size_t count, room;
    size_t piece_size; /* all pieces are of the size of the first */
} Arenas;

static void *
mapped(size_t size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* A new page, or NULL. */
static Page *
new_page(Arenas *arenas)
{
    char *begin, *base, *end;

    if (arenas->count == arenas->room) {
        size_t room = arenas->room ? 2 * arenas->room : 64;
        Page *more = realloc(arenas->pages, room * sizeof(Page));
        if (more == NULL)
            return NULL;
        arenas->pages = more;
        arenas->room = room;
    }
    /* Of twice the size one page is aligned, wherever it begins. */
    begin = mapped(2 * PAGE);
    if (begin == NULL)
        return NULL;
    end = begin + 2 * PAGE;
    base = (char *)(((uintptr_t)begin + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    if (base > begin)
        munmap(begin, base - begin);
    if (base + PAGE < end)
        munmap(base + PAGE, end - (base + PAGE));
    madvise(base, PAGE, MADV_HUGEPAGE); /* if the system refuses, it is 512 small pages */
    arenas->pages[arenas->count] = (Page){base, 0};
    return &arenas->pages[arenas->count++];
}

static void *
arena_alloc(void *context, size_t size)
{
    Arenas *arenas = context;
    Page *page = NULL;
    size_t pieces, i;

    if (!arenas->piece_size && size && PAGE % size == 0 && PAGE / size > 1
        && PAGE / size <= PIECES_MAX)
        arenas->piece_size = size;
    if (size != arenas->piece_size)
        return mapped(size);
    pieces = PAGE / size;
    for (i = arenas->count; page == NULL && i-- > 0;) /* the last ones have space, if any has */
        if (arenas->pages[i].used != (uint32_t)((1ull << pieces) - 1))
            page = &arenas->pages[i];
    if (page == NULL)
        page = new_page(arenas);
    if (page == NULL)
        return NULL;
    for (i = 0; page->used >> i & 1; i++)
        ;
    page->used |= 1u << i;
    return page->base + i * size;
}

static void
arena_free(void *context, void *arena, size_t size)
{
    Arenas *arenas = context;
    size_t i;

    for (i = arenas->count; size == arenas->piece_size && i-- > 0;) {
        Page *page = &arenas->pages[i];
        size_t offset = (size_t)((char *)arena - page->base);
        if ((char *)arena < page->base || offset >= PAGE)
            continue;
        page->used &= ~(1u << (offset / size));
        if (!page->used) {
            munmap(page->base, PAGE);
            *page = arenas->pages[--arenas->count];
        }
        return;
    }
    munmap(arena, size); /* one that was there before, or of another size */
}

/* use_huge_pages() -> bool: from now on, for as long as the process lives. */
static PyObject *
use_huge_pages(PyObject *module, PyObject *nothing)
{
    PyObjectArenaAllocator allocator;

    PyObject_GetArenaAllocator(&allocator);
    if (allocator.alloc != arena_alloc) {
        allocator = (PyObjectArenaAllocator){calloc(1, sizeof(Arenas)), arena_alloc, arena_free};
        if (allocator.ctx == NULL)
            return PyErr_NoMemory();
        PyObject_SetArenaAllocator(&allocator);
    }
    Py_RETURN_TRUE;
}

#else

static PyObject *
use_huge_pages(PyObject *module, PyObject *nothing)
{
    Py_RETURN_FALSE;
}

#endif

static PyMethodDef methods[] = {
    {"use_huge_pages", use_huge_pages, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_interface},
    ONE_INTERPRETER
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._arenas",
    .m_doc = "See emberflow.runners.interpreter.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__arenas(void)
{
    return PyModuleDef_Init(&definition);
}
