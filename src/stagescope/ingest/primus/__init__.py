"""Dumps of AMD Primus."""
