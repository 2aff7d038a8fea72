"""Projects as users write them: each module is run by a test as a project, or as a part of one."""
