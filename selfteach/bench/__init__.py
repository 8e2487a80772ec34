"""Speed: this library and its peers in one interleaved run, beside what the machine could do (`selfteach bench`).

    workloads.py rollout.py learn.py step.py   what is measured: models, prompts and batches; one file per kind of work
    interleaved.py worker.py                   a process for each contestant, which take turns round by round
    roofline.py                                what the work needs at least, and what the machine gives
    systems.py own/ peers/                     who takes part; our side; other libraries, which do not import selfteach
    measure.py report.py                       the figures of a run, and their tables

In the wheel, because it is a command for users: which precision, width and number of threads are fastest differs from
machine to machine, and a claim about speed should be checkable where it matters. It adds 80 kB and no dependency: peers
are found where they are installed, in any environment (`--python PEER=PATH`), and are never imported here. No run needs
anything of it.
"""
