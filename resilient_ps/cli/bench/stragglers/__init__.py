"""`resilient-ps bench consistency`: BSP, SSP and ASP with workers that are slow at times."""
