"""Many tables of one process that act as one."""
