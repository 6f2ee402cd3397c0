/* Python's small objects in huge pages.
 *
 * A worker's state is millions of small objects, met in random order. With pages of 4 kB a processor
 * knows by heart where a few megabytes are, and looks up the rest, in a virtual machine twice: with
 * pages of 2 MB it knows gigabytes. Linux gives such pages to whoever asks, and Python does not ask. It
 * lets others provide its arenas, though (`PyObject_SetArenaAllocator`), from which it serves all
 * objects of up to 512 bytes; these here are pieces of huge pages.
 *
 * What is guaranteed: a page is given back when the last of its pieces is, and an arena that Python had
 * before is given back as Python would. All of it is called with the interpreter's lock held.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
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

static Page *pages;
static size_t pages_count, pages_room;
static size_t piece_size; /* all pieces are of the size of the first */
static int is_installed;

static void *
mapped(size_t size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* A new page, or NULL. */
static Page *
new_page(void)
{
    char *begin, *base, *end;

    if (pages_count == pages_room) {
        size_t room = pages_room ? 2 * pages_room : 64;
        Page *more = realloc(pages, room * sizeof(Page));
        if (more == NULL)
            return NULL;
        pages = more;
        pages_room = room;
    }
    begin = mapped(2 * PAGE);
    if (begin == NULL)
        return NULL;
    end = begin + 2 * PAGE;
    base = (char *)(((uintptr_t)begin + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    if (base > begin)
        munmap(begin, base - begin);
    if (base + PAGE < end)
        munmap(base + PAGE, end - (base + PAGE));
    madvise(base, PAGE, MADV_HUGEPAGE); /* or it stays as it is */
    pages[pages_count] = (Page){base, 0};
    return &pages[pages_count++];
}

static void *
arena_alloc(void *context, size_t size)
{
    Page *page = NULL;
    size_t pieces, i;

    if (!piece_size && size && PAGE % size == 0 && PAGE / size > 1 && PAGE / size <= PIECES_MAX)
        piece_size = size;
    if (size != piece_size)
        return mapped(size);
    pieces = PAGE / size;
    for (i = pages_count; page == NULL && i-- > 0;) /* the last ones have space, if any has */
        if (pages[i].used != (uint32_t)((1ull << pieces) - 1))
            page = &pages[i];
    if (page == NULL)
        page = new_page();
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
    size_t i;

    for (i = pages_count; size == piece_size && i-- > 0;) {
        size_t offset = (size_t)((char *)arena - pages[i].base);
        if ((char *)arena < pages[i].base || offset >= PAGE)
            continue;
        pages[i].used &= ~(1u << (offset / size));
        if (!pages[i].used) {
            munmap(pages[i].base, PAGE);
            pages[i] = pages[--pages_count];
        }
        return;
    }
    munmap(arena, size); /* one that was there before, or of another size */
}

/* use_huge_pages() -> bool: from now on, for as long as the process lives. */
static PyObject *
use_huge_pages(PyObject *module, PyObject *nothing)
{
    if (!is_installed) {
        PyObjectArenaAllocator allocator = {NULL, arena_alloc, arena_free};
        PyObject_SetArenaAllocator(&allocator);
        is_installed = 1;
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

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._arenas",
    .m_doc = "See emberflow.runners.interpreter.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__arenas(void)
{
    return PyModuleDef_Init(&definition);
}
