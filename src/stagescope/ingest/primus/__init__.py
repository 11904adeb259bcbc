"""Reader of dumps of AMD Primus."""
