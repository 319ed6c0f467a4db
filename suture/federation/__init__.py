"""Runs between real owners: what they agree on, what each of them allows, and what it writes down.

Each party has a room, and what travels between them one of its own; nobody knows another party but by what travels.

============  ====================  ===================================================================================
room          name                  what it is
============  ====================  ===================================================================================
wire          `Order`               what the operator wants of the coordinator: one method on one seed
              `Terms`               what the coordinator proposes to every owner before any step
              `Frame`               one request or one answer between them
              `Status`              where a run stands, as the coordinator tells the operator
              `Code`, `Reason`      why something was not done: for programs, and with a sentence for people
              `Signature`           which message a step declares to take, and which to give
coordinator   `Coordinator`         carries out an order, on any transport
              `OwnersCohort`        the owners as a method sees them: the cohort of this engine
              `RunAtCoordinator`    one run there: what has been asked, reported, kept
              `Calls`               the way to the owners of a run
              `Attendance`          which of them are here, lost, or not asked again
owner         `Owner`               its file, its policy, its budget
              `Agreement`           what it has agreed to in a run
              `Desk`                answers frames
              `RunAtOwner`          one open run there, with its `Journal`
operator      `Operator`            orders runs, follows them, brings them home
flare         `FlareTransport`      carries frames with NVIDIA FLARE
              `CoordinatorJob`      what a job starts at the coordinator: a `Coordinator` on that transport
              `OwnerJob`            what a job starts at an owner: its `Desk`
              `Kit`, `Session`      a party's keys and settings; the operator's line to the coordinator
============  ====================  ===================================================================================

A *run* is what was ordered. It is carried out in *legs*, one job each: a leg ends with the run, or where it has to wait.
"""
